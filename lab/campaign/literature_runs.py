"""The literature's tables of Darcy and Navier-Stokes flow: every model for as long on the same data."""

from __future__ import annotations

from factformer.studies.cells import Training
from factformer.studies.targets.literature import MINUTES, MODELS, OURS, TABLES
from lab.campaign.entries import BFLOAT, Entry, entry_name

SIZES = {"darcy_literature": 85, "navier_stokes_literature": 64}
LONG = 15.0
"""Minutes of the one long run of ours."""


def literature() -> list[Entry]:
    """The cells of `factformer reproduce darcy-literature` and `navier-stokes-literature`, ours first."""
    found = []
    for table in TABLES:
        size = SIZES[table.recipe]
        for model in MODELS:
            run = Training(table.recipe, model, table.protocol, size, BFLOAT)
            name = entry_name(model, table.protocol, MINUTES)
            found.append(Entry("literature", f"{table.recipe}-{size}", name, run, MINUTES))
        run = Training(table.recipe, OURS, table.protocol, size, BFLOAT)
        name = entry_name(OURS, table.protocol, LONG)
        found.append(Entry("literature", f"{table.recipe}-{size}", name, run, LONG, "long", in_segments=True))
    return found
