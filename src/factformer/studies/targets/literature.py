"""The literature's tables of Darcy and Navier-Stokes flow: published errors beside models that we train on equal terms.

Published numbers are relative L2 errors after training on 1000 samples, as the papers on Transolver (Wu et al. 2024)
and its successors list them. A model that this package does not have keeps its row, without a number of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from factformer.studies.cells import Builder, Cell, Quoted, Scale, Target, Training

OURS = "factformer_plus"
MODELS = (OURS, "factformer", "fno", "ffno", "unet", "convnext_unet", "transolver", "swin_transformer")
MINUTES = 3
"""Of training at the paper's scale, the same for every model."""


@dataclass(frozen=True)
class Literature:
    """One table: what is trained, and what was published."""

    name: str
    title: str
    recipe: str
    protocol: str
    group: str
    """The fields whose error is meant."""
    published: dict[str, float]
    """By name of the catalog, of models that we train."""
    others: dict[str, float] = field(default_factory=dict)
    """Of models that we do not have."""
    note: str = ""


SOFT = (
    "Published numbers are those of the papers; others who reran Transolver++ report {again}. "
    "At the paper's scale every model trains for three minutes, and ours once more for the whole recipe."
)
DARCY = Literature(
    "darcy-literature",
    "Darcy flow in the literature's setting: 85² of 421², 1000 training samples",
    "darcy_literature",
    "steady",
    "solution",
    {"fno": 0.0108, "ffno": 0.0077, "factformer": 0.0109, "transolver": 0.0057},
    {"ONO": 0.0076, "LSM": 0.0065, "LNO": 0.0063, "Transolver++": 0.0049},
    SOFT.format(again="0.015"),
)
NAVIER_STOKES = Literature(
    "navier-stokes-literature",
    "Navier-Stokes flow in the literature's setting: ν = 1e-5, 64², ten frames in and ten out",
    "navier_stokes_literature",
    "latent_marching",
    "vorticity",
    {"fno": 0.1556, "ffno": 0.2322, "factformer": 0.1214, "transolver": 0.0900},
    {"ONO": 0.1195, "LSM": 0.1535, "LNO": 0.0830, "Transolver++": 0.0719},
    SOFT.format(again="0.18") + " With a protocol of its own and 24 layers F-FNO is published with about 0.025, "
    "read off a figure.",
)
TABLES = (DARCY, NAVIER_STOKES)


def literature_table(table: Literature, scale: Scale) -> Target:
    """Every model of ours for equally long, one long run of `factformer_plus`, and what others published."""
    path, spread = f"fields.{table.group}.relative_l2", f"fields.{table.group}.standard_error"
    length = (f"training.budget_minutes={MINUTES}",) if scale == "paper" else ()
    runs = {model: Training(table.recipe, model, table.protocol, settings=length) for model in MODELS}
    if scale == "paper":
        runs[f"{OURS}, whole recipe"] = Training(table.recipe, OURS, table.protocol)
    cells = [
        Cell(row, "relative L2 error", work, path, table.published.get(row), error_path=spread)
        for row, work in runs.items()
    ]
    cells += [Cell(row, "relative L2 error", Quoted(row), path, value) for row, value in table.others.items()]
    return Target(table.name, table.title, tuple(cells), table.note)


BUILDERS: dict[str, Builder] = {
    DARCY.name: lambda scale: literature_table(DARCY, scale),
    NAVIER_STOKES.name: lambda scale: literature_table(NAVIER_STOKES, scale),
}
