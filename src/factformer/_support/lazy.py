"""Packages whose public names and modules are loaded when first used, so that importing them stays quick."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that finds its public names in the modules of ``_homes``, and the modules that lie in it.

    A function may have the name of the file it lives in: importing that file would put the module in the
    function's place, so it is kept out.
    """

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self._homes.get(name)
        value = self._module(name) if home is None else getattr(importlib.import_module(home), name)
        self.__dict__[name] = value
        return value

    def _module(self, name: str) -> ModuleType:
        whole = f"{self.__name__}.{name}"
        if name.startswith("_") or importlib.util.find_spec(whole) is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return importlib.import_module(whole)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self._homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes})


def load_lazily(package: str, homes: Mapping[str, str]) -> list[str]:
    """Make ``package`` find the names of ``homes`` (name → module) on first use; returns them for ``__all__``."""
    module = sys.modules[package]
    module.__dict__["_homes"] = dict(homes)
    module.__class__ = LazyPackage
    return list(homes)
