"""What trained attention looks like: spectra of both kinds, stationarity and symmetry of the learned kernels."""

from __future__ import annotations

from factformer.studies.cells import Builder, Cell, Looking, Scale, Target
from factformer.studies.scales import TINY_MODEL
from factformer.studies.targets.kolmogorov import at_128

LINEAR_SHARE = 0.05
"""The paper: less than 5 % of the singular values of linear attention hold over 90 % of the energy."""


def attention_target(scale: Scale, name: str) -> Target:
    """What the learned kernels look like: spectra of both kinds of attention, or stationarity."""
    depth, num_axes = (TINY_MODEL["depth"] if scale == "tiny" else 4), 2
    factorized = Looking(at_128(scale, "factformer"))
    quantity = "singular values with 90 % of the energy (fraction)"
    cells: list[Cell] = []
    for index in range(depth * num_axes):
        row = f"factorized, layer {index // num_axes + 1}, axis {index % num_axes + 1}"
        base = f"kernels.{index}"
        if name == "spectra":
            cells.append(Cell(row, quantity, factorized, f"{base}.fraction_for_energy", kind="number"))
        else:
            cells += [
                Cell(row, "stationarity", factorized, f"{base}.stationarity", kind="number"),
                Cell(row, "symmetry", factorized, f"{base}.symmetry", kind="number"),
            ]
    if name == "kernels":
        return Target(name, "Learned kernels: stationarity and symmetry", tuple(cells))
    linear = Looking(at_128(scale, "linear_attention"))
    cells += [
        Cell(
            f"linear, layer {layer + 1}",
            quantity,
            linear,
            f"kernels.{layer}.fraction_for_energy",
            LINEAR_SHARE,
            "number",
        )
        for layer in range(depth)
    ]
    note = "For linear attention the paper states an upper bound of 5 %, out of 1024 singular values."
    return Target(name, "Spectra of attention kernels", tuple(cells), note)


BUILDERS: dict[str, Builder] = {
    "spectra": lambda scale: attention_target(scale, "spectra"),
    "kernels": lambda scale: attention_target(scale, "kernels"),
}
