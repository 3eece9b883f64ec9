"""What ``bundle.json`` says of a trained surrogate: read, checked, and brought from older versions to this one."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factformer import catalog
from factformer._support.documents import finite, read_json
from factformer._support.run_names import CHECKPOINTS
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.models._backbone import Backbone, ModelConfig, check_model, find_model
from factformer.problem import Problem
from factformer.surrogate import Surrogate
from factformer.zoo.index import DESCRIPTION as DESCRIPTION

FORMAT = "factformer bundle"
FORMAT_VERSION = 2
CHECKSUM = "description_sha256"
"""The key of `bundle.json` that holds the checksum of all others; version 1 had none."""


@dataclass(frozen=True)
class Description:
    """What `bundle.json` says, checked: how to build the surrogate, and where it comes from."""

    config: ModelConfig
    marching_steps: int
    problem: Problem
    normalizer: Normalizer
    statistics: dict[str, list[float]]
    """Those of the normaliser as they are written, here and beside the weights."""
    weights_sha256: str
    provenance: dict[str, Any]

    def build(self) -> Surrogate:
        return Surrogate(self.problem, self.config, self.marching_steps, self.normalizer)


def read_description(folder: Path, models: Iterable[type[Backbone]] = ()) -> Description:
    """What the bundle in ``folder`` is, without its weights."""
    values = _read_values(folder)
    with _described(folder / DESCRIPTION):
        config, provenance = values["config"], values["provenance"]
        if not isinstance(config, dict) or not isinstance(provenance, dict):
            raise UserError("config and provenance must be JSON objects")
        name = str(config["name"])
    model = _find_model(name, folder, models)  # nothing is wrong with the file where it is not there
    with _described(folder / DESCRIPTION):
        _require_whole_number("marching_steps", values["marching_steps"])
        if not isinstance(values["sha256"], str):
            raise UserError("sha256 must be a text")
        normalization = values["normalization"]
        for name, numbers in normalization.items():
            if not isinstance(numbers, list) or any(type(number) not in (int, float) for number in numbers):
                raise UserError(f"normalization.{name} must be a list of numbers")
        problem = _problem(values)
        normalizer = Normalizer.from_dict(normalization, problem)
        normalizer.check(problem)
        return Description(
            config=model.config_class.parse(config, "model"),
            marching_steps=values["marching_steps"],
            problem=problem,
            normalizer=normalizer,
            statistics=normalization,
            weights_sha256=values["sha256"],
            provenance=provenance,
        )


def read_problem(folder: Path) -> Problem:
    """The problem of the bundle in ``folder``; its model, which may be a user's own, need not be known."""
    values = _read_values(folder)
    with _described(folder / DESCRIPTION):
        return _problem(values)


def _problem(values: Mapping[str, Any]) -> Problem:
    for key in ("num_context_frames", "horizon"):
        _require_whole_number(f"problem.{key}", values["problem"][key])
    return Problem.from_dict(values["problem"])


@contextlib.contextmanager
def _described(file: Path) -> Iterator[None]:
    """Turn what is wrong with a description into one line about ``file``."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{file} is not a complete bundle description: it has no {error}") from None
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{file} is not a valid bundle description: {error}") from None


def _read_values(folder: Path) -> dict[str, Any]:
    """The checked JSON of a description, in the form of this version."""
    file = folder / DESCRIPTION
    if not file.is_file():
        if (folder / CHECKPOINTS).is_dir():
            raise UserError(f"the run {folder} has not finished; resume it: `factformer train --resume --out {folder}`")
        if any(folder.glob("*.hdf5")):
            raise UserError(f"{folder} holds a dataset, and this takes a run or a bundle")
        raise UserError(f"{folder} is not a bundle: it has no {DESCRIPTION}")
    values = read_json(file)
    if values.get("format") != FORMAT:
        raise UserError(f"{file} was not written by factformer")
    return migrate(values, file)


def migrate(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """The description of any version in the form of this one; raises where it was changed after it was written.

    Version 1 had no checksum of its own.
    """
    version = values.get("version")
    if version not in (1, FORMAT_VERSION) or isinstance(version, bool):
        raise UserError(
            f"{file} has bundle version {version!r}, this factformer reads 1 to {FORMAT_VERSION}; "
            "install a matching version"
        )
    if (version != 1 or CHECKSUM in values) and values.get(CHECKSUM) != description_checksum(values):
        raise UserError(f"{file} does not match its checksum: it is damaged or was changed; copy the bundle again")
    return values


def description_checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a description: of its values, whatever the order and spacing they are written in."""
    content = finite({key: value for key, value in values.items() if key != CHECKSUM})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _find_model(name: str, folder: Path, given: Iterable[type[Backbone]]) -> type[Backbone]:
    if isinstance(given, type):
        raise UserError(f"models= takes a list of classes: models=[{given.__name__}]")
    with catalog.using(models=[check_model(model) for model in given]):
        if name not in catalog.names("models"):
            raise UserError(
                f"{folder} holds the model {name!r}, which is not in the catalog: give its class, with models=[…] in "
                "Python or --plugin FILE on the command line, or install the package that it comes from"
            )
        return find_model(name)


def _require_whole_number(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise UserError(f"{name} must be a whole number, got {value!r}")
