"""Darcy flow: error against training resolution."""

from __future__ import annotations

from factformer.studies.cells import Builder, Cell, Scale, Target, Training

DARCY_MODELS = ("factformer", "fno", "ffno", "dilated_resnet", "galerkin_transformer")
DARCY_RESOLUTIONS = {"paper": (43, 61, 85, 141, 211, 421), "reduced": (43, 85, 169), "tiny": (15, 29)}


def figure_darcy_resolutions(scale: Scale) -> Target:
    cells = [
        Cell(
            model,
            f"error at {size} points per axis",
            Training("darcy", model, "steady", size),
            "fields.solution.relative_l2",
            error_path="fields.solution.standard_error",
        )
        for model in DARCY_MODELS
        for size in DARCY_RESOLUTIONS[scale]
    ]
    return Target("figure-darcy-resolutions", "Darcy flow: error against training resolution", tuple(cells))


BUILDERS: dict[str, Builder] = {"figure-darcy-resolutions": figure_darcy_resolutions}
