"""Bundles: a trained surrogate as a folder of ``model.safetensors`` and ``bundle.json``; no pickle anywhere.

Everything is checked on arrival: both files have checksums, statistics and weights are finite, and every tensor has the
name, shape and type that the model expects.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from factformer import __version__, engine
from factformer._support.documents import json_text
from factformer._support.files import clean_scratch_folders, explained, file_checksum, scratch_folder
from factformer._support.run_names import BUNDLE
from factformer._support.text import first_line
from factformer.errors import UserError
from factformer.models._backbone import Backbone, backbone_of
from factformer.surrogate import Surrogate
from factformer.zoo import lookup
from factformer.zoo.description import (
    CHECKSUM,
    DESCRIPTION,
    FORMAT,
    FORMAT_VERSION,
    Description,
    description_checksum,
    read_description,
)
from factformer.zoo.index import BUNDLE_FILES, WEIGHTS

STATISTICS = "normalizer."
"""How the names of tensors begin that hold statistics, not weights."""
STORED_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types that a weight of float32 may be stored in."""
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Names of types in the header of a safetensors file."""


def save_bundle(
    surrogate: Surrogate,
    path: str | Path,
    provenance: dict[str, Any] | None = None,
    *,
    storage: torch.dtype | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``surrogate`` to the folder ``path``, whole or not at all.

    A surrogate whose parts are not those that its configuration describes is refused: it could not be loaded again.
    ``storage`` (``torch.float16`` or ``torch.bfloat16``) halves the file; the weights are float32 again when
    loaded. What is too large for 16 bits stays as it is.
    """
    _require_described(surrogate)
    target = Path(path)
    with explained(target):
        _clean_up(target)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already; choose another path or pass overwrite=True (--overwrite)")
    if target.exists() and not (target.is_dir() and {item.name for item in target.iterdir()} <= set(BUNDLE_FILES)):
        raise UserError(f"{target} holds other things than a bundle and is not replaced; choose another path")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in surrogate.state_dict().items()}
    _require_finite(state, "the surrogate")
    surrogate.normalizer.check(surrogate.problem)
    if storage is not None:
        # Weights bear rounding; buffers such as the frequencies of Fourier features are multiplied by 2π x.
        weights = {name for name, parameter in surrogate.named_parameters() if parameter.dtype == torch.float32}
        shorter = {name: state[name].to(storage) for name in weights}
        state |= {name: t for name, t in shorter.items() if bool(t.isfinite().all())}
    scratch = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = scratch_folder(target)
        save_file(state, scratch / WEIGHTS)
        description = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "config": surrogate.config.model_dump(mode="json"),
            "marching_steps": surrogate.marching_steps,
            "problem": surrogate.problem.to_dict(),
            "normalization": surrogate.normalizer.to_dict(),
            "sha256": file_checksum(scratch / WEIGHTS),
            "provenance": {
                "factformer": __version__,
                "torch": torch.__version__,
                **surrogate.provenance,
                **(provenance or {}),
            },
        }
        description[CHECKSUM] = description_checksum(description)
        (scratch / DESCRIPTION).write_text(json_text(description), encoding="utf-8")
        shutil.copymode(scratch / DESCRIPTION, scratch / WEIGHTS)  # safetensors keeps its files from everyone else
        _put_in_place(scratch, target)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the bundle {target}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: str | Path, *, models: Iterable[type[Backbone]] = ()) -> Surrogate:
    """The surrogate of a bundle, ready to predict; ``path`` is its folder or the name of one in the zoo.

    A name is looked up in the folders of ``FACTFORMER_ZOO``, in the installed zoo, among the bundles that were fetched
    before, and in the index of the zoo, from whose address it is fetched and checked. A bundle holds no code. If its
    model is not in the catalog, its class must be among ``models``.
    """
    folder = _find(path)
    description = read_description(folder, models)
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{folder} has no {WEIGHTS}: the bundle is incomplete")
    try:
        if file_checksum(weights) != description.weights_sha256:
            raise UserError(f"{weights} does not match its checksum: the file is damaged or changed; copy it again")
        _check_header(weights, description)
        state = load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} is not a safetensors file: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {weights}: {error.strerror or error}") from None
    _require_finite(state, str(weights))
    twice = {name.removeprefix(STATISTICS): state.pop(name).tolist() for name in list(state) if _is_statistic(name)}
    if twice != description.statistics:
        raise UserError(f"{folder / DESCRIPTION} and {weights} hold different statistics: copy the bundle again")
    surrogate = description.build()
    if any(state[name].dtype == torch.float64 for name, _ in surrogate.named_parameters()):
        surrogate.double()
    # Statistics stay exact even where the weights are stored in 16 bits: they come from the description.
    exact = {STATISTICS + name: buffer for name, buffer in description.normalizer.named_buffers()}
    surrogate.load_state_dict({**state, **exact})
    surrogate.provenance = description.provenance
    engine.attach(surrogate)
    return surrogate.eval()


def _require_described(surrogate: Surrogate) -> None:
    """Raise where configuration and weights do not belong together, such as with another backbone put in."""
    found, wanted = type(surrogate.backbone), backbone_of(surrogate.config)
    if found is not wanted:
        raise UserError(
            f"the surrogate's backbone is a {found.__module__}.{found.__qualname__}, its configuration describes the "
            f"model {surrogate.config.name!r}: build it with build_surrogate(problem, {found.__name__})"
        )
    with torch.random.fork_rng(devices=[]):
        described = Surrogate(surrogate.problem, surrogate.config, surrogate.marching_steps, surrogate.normalizer)
    shapes, expected = ({k: tuple(v.shape) for k, v in s.state_dict().items()} for s in (surrogate, described))
    for name in sorted({*shapes, *expected}):
        if shapes.get(name) != expected.get(name):
            raise UserError(
                f"the surrogate's {name} has shape {shapes.get(name)}, its configuration describes "
                f"{expected.get(name)}: build it with the configuration that it is to be saved with"
            )


def _find(path: str | Path) -> Path:
    folder = Path(path)
    if folder.is_dir():
        if (folder / DESCRIPTION).exists():
            return folder
        inside = folder / BUNDLE
        return next((place for place in (inside, _aside(inside)) if place.is_dir()), folder)
    if folder.exists():
        raise UserError(f"{folder} is a file; a bundle is a folder with {WEIGHTS} and {DESCRIPTION}")
    if _aside(folder).is_dir():  # a process was killed while it replaced the bundle
        return _aside(folder)
    return lookup.find(str(path))


def _check_header(weights: Path, description: Description) -> None:
    """Raise unless the file holds exactly the tensors of the model; neither is put into memory for that."""
    with safe_open(weights, framework="pt") as file:
        names = [name for name in file.keys() if not _is_statistic(name)]  # noqa: SIM118 (it is no mapping)
        found = {name: file.get_slice(name) for name in names}
        if _is_ours(description) and description.config.depth > len(found):  # before so many layers are built
            raise UserError(f"{weights} holds {len(found)} tensors, too few for {description.config.depth} layers")
        expected = {name: t for name, t in _skeleton(description).state_dict().items() if not _is_statistic(name)}
        for name in sorted(expected.keys() ^ found.keys()):
            what = "lacks the tensor" if name in expected else "holds a tensor that the model does not have:"
            why = "it is not of this model, or of another version of it, which must be trained anew"
            raise UserError(f"{weights} {what} {name!r}: {why}")
        for name, tensor in expected.items():
            shape = tuple(found[name].get_shape())
            if shape != tuple(tensor.shape):
                raise UserError(f"{weights}: {name!r} has shape {shape}, the model has {tuple(tensor.shape)}")
            dtype = TYPES.get(found[name].get_dtype())
            allowed = STORED_TYPES if tensor.dtype == torch.float32 else (tensor.dtype,)
            if dtype not in allowed:
                raise UserError(f"{weights}: {name!r} is stored as {found[name].get_dtype()}, not as {tensor.dtype}")


def _skeleton(description: Description) -> Surrogate:
    """The surrogate without memory for its weights."""
    name = description.config.name
    try:
        with torch.device("meta"):
            return description.build()
    except UserError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        if not _is_ours(description):
            return description.build()  # a model of a user's own may need real tensors to be built
        reason = first_line(error)
        raise UserError(f"the bundle's {name!r} model cannot be built as {DESCRIPTION} says: {reason}") from None


def _is_ours(description: Description) -> bool:
    return type(description.config).__module__.startswith("factformer.")


def _is_statistic(name: str) -> bool:
    return name.startswith(STATISTICS)


def _require_finite(state: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{where} holds NaN or infinite weights in {name!r}: it cannot predict")


def _aside(target: Path) -> Path:
    """Where the old bundle is while a new one takes its place."""
    return target.absolute().with_name(f".{target.absolute().name}.replaced")


def _put_in_place(scratch: Path, target: Path) -> None:
    """Move the old bundle aside, the new one in, and remove the old one; on failure the old one comes back."""
    aside = _aside(target)
    if target.exists():
        os.replace(target, aside)
    try:
        os.replace(scratch, target)
    except BaseException:
        if aside.exists():
            os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _clean_up(target: Path) -> None:
    """Undo what a killed `save_bundle` left: the old bundle comes back, half of a new one goes."""
    aside = _aside(target)
    if aside.is_dir():
        if target.exists():
            shutil.rmtree(aside)
        else:
            os.replace(aside, target)
    clean_scratch_folders(target)
