"""Errors of one field group over many windows, and their means with standard errors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from factformer import metrics
from factformer.evaluation.results import FieldErrors, Floor, Spectrum


class Scores:
    """Metrics of one field group, gathered window by window; spectra, of even grids only, are summed."""

    def __init__(self, deviation: Tensor, even: bool) -> None:
        self.unit = float(metrics.unit(deviation))
        self.deviation, self.even = deviation * self.unit, even
        self.values: dict[str, list[Tensor]] = {}
        self.spectra: dict[str, Tensor] = {}
        self.num_spectra = 0

    def add(
        self, prediction: Tensor, truth: Tensor, floor: Tensor, frame_dt: float, mask: Tensor | None = None
    ) -> None:
        prediction, truth, floor = (metrics.within(part * self.unit, mask) for part in (prediction, truth, floor))
        new = {
            "relative_l2": metrics.relative_l2(prediction, truth, self.deviation, mask),
            "relative_l2_per_frame": metrics.relative_l2_per_frame(prediction, truth, self.deviation, mask),
            "vrmse": metrics.vrmse(prediction, truth, self.deviation, mask).mean(1),
            "correlation_time": metrics.correlation_time(prediction, truth, frame_dt, mask=mask).double(),
            "floor": metrics.relative_l2(floor, truth, self.deviation, mask),
            "floor_per_frame": metrics.relative_l2_per_frame(floor, truth, self.deviation, mask),
        }
        if self.even:
            new["spectrum_error"] = metrics.spectrum_error(prediction, truth, mask).mean(1)
        for name, value in new.items():
            self.values.setdefault(name, []).append(value.double().cpu())
        for name, frames in (("prediction", prediction), ("truth", truth)) if self.even else ():
            spectrum = metrics.energy_spectrum(frames.flatten(0, 1)).double().sum(0).cpu()
            self.spectra[name] = self.spectra.get(name, torch.zeros_like(spectrum)) + spectrum
        self.num_spectra += truth.shape[0] * truth.shape[1]

    def num_diverged(self) -> int:
        """Windows whose roll-out left the finite numbers."""
        return int((~torch.cat(self.values["relative_l2"]).isfinite()).sum())

    def of_trajectories(self, owners: Tensor) -> list[float | None]:
        """The error of each trajectory, averaged over its windows."""
        errors = torch.cat(self.values["relative_l2"])
        return [float(errors[owners == name].mean()) for name in owners.unique()]

    def summary(self, owners: Tensor) -> FieldErrors:
        values = {name: torch.cat(parts) for name, parts in self.values.items()}
        per_frame, floor = values["relative_l2_per_frame"], values["floor_per_frame"]
        return FieldErrors(
            relative_l2=float(values["relative_l2"].mean()),
            relative_l2_final=float(per_frame[:, -1].mean()),
            relative_l2_per_frame=per_frame.mean(0).tolist(),
            standard_error=clustered_standard_error(values["relative_l2"], owners),
            standard_error_final=clustered_standard_error(per_frame[:, -1], owners),
            vrmse=float(values["vrmse"].mean()),
            spectrum_error=float(values["spectrum_error"].mean()) if self.even else None,
            correlation_time=float(values["correlation_time"].mean()),
            persistence=Floor(
                relative_l2=float(values["floor"].mean()),
                relative_l2_final=float(floor[:, -1].mean()),
                relative_l2_per_frame=floor.mean(0).tolist(),
            ),
            spectrum=self.mean_spectra() if self.even else None,
        )

    def mean_spectra(self) -> Spectrum:
        means = {name: (total / self.num_spectra / self.unit**2).tolist() for name, total in self.spectra.items()}
        return Spectrum(list(range(len(means["truth"]))), **means)


def clustered_standard_error(values: Float[Tensor, "window"], owners: Tensor) -> float:
    """Standard error of the mean when windows of one trajectory belong together."""
    names = owners.unique()
    if len(names) == 1:
        return metrics.standard_error(values)
    return metrics.standard_error(torch.stack([values[owners == name].mean() for name in names]))
