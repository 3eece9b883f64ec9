"""VTK files written for tests, in every encoding."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np

NAMES = {"f4": "Float32", "f8": "Float64", "i4": "Int32"}


class VtkWriter:
    """Writes arrays ``(x, y[, z][, channel])`` of one frame as image data or a rectilinear grid."""

    def __init__(self, form: str = "ascii", *, compressed: bool = False, header: str = "UInt32", split: bool = False):
        self.form, self.compressed, self.header, self.split = form, compressed, header, split
        self.appended = b""

    def numbers(self, name: str, values: np.ndarray) -> str:
        """One ``DataArray``; values are ``(z, y, x, component)`` or a line."""
        width = values.shape[-1] if values.ndim > 1 else 1
        kind = NAMES[values.dtype.str[1:]]
        attributes = f'type="{kind}" Name="{name}" NumberOfComponents="{width}" format="{self.form.split("-")[0]}"'
        if self.form == "ascii":
            return f"<DataArray {attributes}>{' '.join(map(repr, values.ravel().tolist()))}</DataArray>"
        data, word = np.ascontiguousarray(values).tobytes(), np.dtype({"UInt32": "<u4", "UInt64": "<u8"}[self.header])
        if self.compressed:
            half = len(data) // 2
            blocks = [zlib.compress(data[:half]), zlib.compress(data[half:])]
            head = np.array([2, half, len(data) - half, *map(len, blocks)], word).tobytes()
            pieces = [head, b"".join(blocks)]
        else:
            head = np.array([len(data)], word).tobytes()
            pieces = [head, data] if self.split else [head + data]
        if self.form == "appended-raw":
            offset, self.appended = len(self.appended), self.appended + b"".join(pieces)
            return f'<DataArray {attributes} offset="{offset}"/>'
        text = b"".join(map(base64.b64encode, pieces))
        if self.form == "binary":
            return f"<DataArray {attributes}>{text.decode()}</DataArray>"
        offset, self.appended = len(self.appended), self.appended + text
        return f'<DataArray {attributes} offset="{offset}"/>'

    def write(
        self,
        path: Path,
        fields: dict[str, np.ndarray],
        *,
        axes: list[np.ndarray] | None = None,
        place: str = "PointData",
        time: float | None = None,
        shape: tuple[int, ...] = (6, 5),
    ) -> Path:
        """Coordinates ``axes`` make a rectilinear grid; without them points are one apart."""
        points = [*shape, *[1] * (3 - len(shape))]
        extent = " ".join(f"0 {count - 1 + (place == 'CellData' and count > 1)}" for count in points)
        arrays = ""
        for name, values in fields.items():
            full = values if values.ndim > len(shape) else values[..., None]
            full = full.reshape(*points, full.shape[-1]).transpose(2, 1, 0, 3)
            arrays += self.numbers(name, full)
        lines = "" if axes is None else "".join(self.numbers("line", line) for line in [*axes, np.zeros(1)][:3])
        lines = f"<Coordinates>{lines}</Coordinates>" if axes is not None else ""
        moment = "" if time is None else f"<FieldData>{self.numbers('TimeValue', np.array([time]))}</FieldData>"
        kind = "ImageData" if axes is None else "RectilinearGrid"
        compressor = ' compressor="vtkZLibDataCompressor"' if self.compressed else ""
        text = (
            f'<?xml version="1.0"?>\n<VTKFile type="{kind}" version="1.0" byte_order="LittleEndian" '
            f'header_type="{self.header}"{compressor}>\n<{kind} WholeExtent="{extent}" Origin="0 0 0" Spacing="1 1 1">'
            f'{moment}<Piece Extent="{extent}"><{place}>{arrays}</{place}>{lines}</Piece></{kind}>\n'
        ).encode()
        if self.appended:
            encoding = self.form.split("-")[1]
            text += f'<AppendedData encoding="{encoding}">\n_'.encode() + self.appended + b"\n</AppendedData>\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text + b"</VTKFile>\n")
        return path


def write_collection(path: Path, files: dict[str, float]) -> Path:
    entries = "".join(f'<DataSet timestep="{time}" file="{name}"/>' for name, time in files.items())
    path.write_text(f'<VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>', encoding="utf-8")
    return path
