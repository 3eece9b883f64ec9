"""An experiment: everything that decides the outcome of a training run, as one strict configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import SerializeAsAny

from factformer.config import Config, apply_overrides, read_yaml
from factformer.errors import UserError
from factformer.models._backbone import ModelConfig, find_model
from factformer.protocols import ProtocolConfig
from factformer.training.experiment.config import DataConfig, TrainingConfig


class Experiment(Config):
    """A problem, a model, the data, the protocol and the training of the one on the other."""

    problem: str
    """Name of a problem of the catalog, or of one's own when the frames are given as arrays."""
    recipe: str = "custom"
    scale: str = "custom"
    model: SerializeAsAny[ModelConfig]
    data: DataConfig = DataConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    training: TrainingConfig = TrainingConfig()

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Validate ``values``; the ``model`` section is read by the configuration of the model it names."""
        known = dict(values)
        model = known.get("model")
        if isinstance(model, Mapping):
            known["model"] = parse_model(model)
        return super().parse(known, where)

    def override(self, assignments: Iterable[str]) -> Self:
        """A copy with ``"section.key=value"`` assignments applied.

        Another ``model.name`` keeps the options that the new model shares with the old one; the old one's own
        options go, unless an assignment sets them, which is an error that names the closest key.
        """
        values = self.model_dump(mode="json")
        name = _assigned_model(assignments)
        if name is not None and name != self.model.name:
            shared = find_model(name).config_class.model_fields
            values["model"] = {
                key: value
                for key, value in values["model"].items()
                if key in shared and key in self.model.model_fields_set
            }
        return self.parse(apply_overrides(values, assignments))

    def save(self, path: Path) -> None:
        """Write as YAML."""
        path.write_text(self.to_yaml(), encoding="utf-8")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `save` wrote, or older versions of it."""
        if not path.exists():
            raise UserError(f"there is no configuration at {path}")
        values = read_yaml(path)
        if not isinstance(values, dict):
            raise UserError(f"{path} is not the configuration of an experiment")
        return cls.parse_saved(values)

    @classmethod
    def parse_saved(cls, values: Mapping[str, Any]) -> Self:
        """Validate what was saved, by this version or an older one."""
        return cls.parse(values)


def parse_model(values: Mapping[str, Any]) -> ModelConfig:
    """The model section as the configuration class of the model it names."""
    return find_model(str(values.get("name"))).config_class.parse(values, where="model")


def differences(saved: Experiment, wanted: Experiment) -> list[str]:
    """``key: saved, wanted`` of every value in which two experiments differ."""
    ours, theirs = flat(saved.model_dump(mode="json")), flat(wanted.model_dump(mode="json"))
    return [
        f"{key} is {ours.get(key)!r} there and {theirs.get(key)!r} here"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[prefix + key] = value
    return result


def _assigned_model(assignments: Iterable[str]) -> str | None:
    for assignment in reversed(list(assignments)):
        key, _, value = assignment.partition("=")
        if key.strip() == "model.name":
            return value.strip()
    return None
