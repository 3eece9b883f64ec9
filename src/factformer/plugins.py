"""Plugin files: models, PDEs and metrics that a user has written in a Python file (``--plugin my.py``).

Taken from the file are the `Backbone` classes that it defines, the `PDE` objects that it binds to a name, and the
functions of its dictionary ``METRICS``, which have the form ``f(prediction, target, problem)``. The file is run as
Python code: give only what you would run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from factformer import catalog
from factformer.errors import UserError
from factformer.evaluation.own_metrics import Metric, check_metrics
from factformer.models import Backbone
from factformer.models._backbone import check_model
from factformer.pdes import PDE

Item = TypeVar("Item")


@dataclass(frozen=True)
class Plugin:
    """What a plugin file holds."""

    models: tuple[type[Backbone], ...]
    pdes: tuple[PDE, ...]
    metrics: Mapping[str, Metric]


def bring_plugins(paths: Iterable[str | Path]) -> None:
    """Put what plugin files hold into the catalog, for the rest of the current command."""
    plugins = [read_plugin(path) for path in paths]
    metrics: dict[str, Metric] = {}
    for plugin in plugins:
        for name, function in plugin.metrics.items():
            if name in metrics:
                raise UserError(f"two metrics are called {name!r}: give one of them another name")
            metrics[name] = function
    catalog.bring(
        models=[model for plugin in plugins for model in plugin.models],
        pdes=[pde for plugin in plugins for pde in plugin.pdes],
        metrics=metrics,
    )


def read_plugin(path: str | Path) -> Plugin:
    """Run a plugin file and take out what it holds."""
    module = _run(Path(path))
    values = [value for name, value in vars(module).items() if not name.startswith("__")]
    defined = [value for value in values if isinstance(value, type) and value.__module__ == module.__name__]
    models = [check_model(value) for value in defined if issubclass(value, Backbone) and not inspect.isabstract(value)]
    pdes = [value for value in values if isinstance(value, PDE)]
    metrics = getattr(module, "METRICS", {})
    if not isinstance(metrics, Mapping):
        raise UserError(f'{path}: METRICS must be functions by name, such as {{"largest": f}}; got {metrics!r}')
    if not (models or pdes or metrics):
        forgotten = [value.__name__ for value in defined if issubclass(value, PDE)]
        hint = f"bind an object: pde = {forgotten[0]}()" if forgotten else "see docs/how-to/add-a-model.md"
        raise UserError(f"the plugin {path} holds no Backbone class, no PDE object and no METRICS; {hint}")
    return Plugin(_once(models), _once(pdes), check_metrics(metrics))


def _once(items: Iterable[Item]) -> tuple[Item, ...]:
    """Without repetition: an object may have two names in a file."""
    return tuple({id(item): item for item in items}.values())


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no plugin file {path}")
    place = str(path.resolve())
    name = f"factformer_plugin_{hashlib.sha256(place.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise UserError(f"the plugin {path} must be a Python file, whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and annotations look their names up
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        raise UserError(f"the plugin {path}: {error}") from error
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "it"
        raise UserError(f"the plugin {path} is not valid Python: {where}: {error.msg}") from error
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"the plugin {path} fails with {catalog.one_line(error)} (--debug shows where)") from error
    return module
