"""APEBench: models on its scenarios in its protocol and metric, beside numbers read off the figure of its paper."""

from __future__ import annotations

from collections.abc import Sequence

from factformer.studies.apebench.scenarios import SCENARIOS
from factformer.studies.cells import Builder, Cell, Emulating, Quoted, Scale, Target

MODELS = ("factformer_plus", "ffno", "fno", "dilated_resnet", "unet")
QUANTITY = "geometric mean of the normalised RMSE"
NOTE = (
    "Models train with the defaults of `fit`. Those of `factformer_plus` on one axis were chosen by short runs on "
    "Kuramoto-Sivashinsky (docs/research-log.md); the settings of the other models were not searched. Networks of "
    "APEBench are read off the comparison figure of its paper and were not trained here."
)


def apebench(name: str, scale: Scale, num_axes: Sequence[int]) -> Target:
    """Every model on the scenarios of these dimensions; the tiny scale has those of one axis alone."""
    cells: list[Cell] = []
    for scenario in SCENARIOS.values():
        if scenario.num_axes not in num_axes or (scale == "tiny" and scenario.num_axes > 1):
            continue
        for model in MODELS:
            work = Emulating(scenario.name, model)
            cells.append(Cell(f"{scenario.name}, {model}", QUANTITY, work, "geometric_mean"))
        for network, value in scenario.read_off.items():
            row = f"{scenario.name}, {network} of APEBench"
            cells.append(Cell(row, QUANTITY, Quoted(network), "geometric_mean", value))
    title = "APEBench: error of roll-outs over 100 states" + (", one axis" if tuple(num_axes) == (1,) else "")
    return Target(name, title, tuple(cells), NOTE)


BUILDERS: dict[str, Builder] = {
    "apebench": lambda scale: apebench("apebench", scale, (1, 2, 3)),
    "apebench-1d": lambda scale: apebench("apebench-1d", scale, (1,)),
}
