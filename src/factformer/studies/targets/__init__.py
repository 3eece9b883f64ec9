"""The targets of `reproduce`: tables and figures as lists of cells, one file per family.

A family is a module with ``BUILDERS``, which make its targets by name at a scale. To add one, add the module and name
it in `FAMILIES`. Where a source gives a figure without numbers, its column stays empty.
"""

from __future__ import annotations

from factformer.config import unknown_name
from factformer.studies.cells import Builder, Scale, Target
from factformer.studies.targets import attention, costs, darcy, kolmogorov, literature, picture_pages, tables, trends

FAMILIES = (tables, darcy, trends, kolmogorov, costs, attention, picture_pages, literature)
BUILDERS: dict[str, Builder] = {name: build for family in FAMILIES for name, build in family.BUILDERS.items()}


def find_target(name: str, scale: Scale) -> Target:
    """The target with this name at a scale; an unknown name lists the choices."""
    if name not in BUILDERS:
        raise unknown_name("target", name, BUILDERS)
    return BUILDERS[name](scale)


def targets(scale: Scale = "paper") -> dict[str, Target]:
    """All targets by name."""
    return {name: build(scale) for name, build in BUILDERS.items()}
