"""Optional packages: imported when first needed; a missing one is one line that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from factformer.errors import UserError


def import_extra(module: str, extra: str) -> ModuleType:
    """The module of an optional package; raises where the package is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there and breaks on one that it needs itself
        package = module.partition(".")[0]
        raise UserError(f"this needs the package {package}: pip install 'factformer[{extra}]'") from None
