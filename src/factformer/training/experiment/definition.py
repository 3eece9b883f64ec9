"""An experiment: everything that decides the outcome of a training run, as one strict configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import SerializeAsAny

from factformer._support.documents import read_yaml
from factformer._support.text import cut
from factformer.config import Config, apply_overrides, unknown_name
from factformer.errors import UserError
from factformer.models._backbone import ModelConfig, find_model
from factformer.protocols import ProtocolConfig, config_class, migrated_protocol, parse_protocol
from factformer.training.experiment.config import DataConfig, TrainingConfig


class Experiment(Config):
    """A problem, a model, the data, the protocol and the training of the one on the other."""

    problem: str
    """Name of a problem of the catalog, or of one's own when the frames are given as arrays."""
    recipe: str = "custom"
    scale: str = "custom"
    model: SerializeAsAny[ModelConfig]
    data: DataConfig = DataConfig()
    protocol: SerializeAsAny[ProtocolConfig]
    training: TrainingConfig = TrainingConfig()

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Validate ``values``; ``model`` and ``protocol`` are read by the configurations of those that they name."""
        known = {"protocol": {}, **values}
        for section, parse in (("model", parse_model), ("protocol", parse_protocol)):
            if isinstance(known.get(section), Mapping):
                known[section] = parse(known[section])
        return super().parse(known, where)

    def override(self, assignments: Iterable[str]) -> Self:
        """A copy with ``"section.key=value"`` assignments applied.

        Another ``model.name`` or ``protocol.name`` keeps the options that the new one shares with the old one; the
        old one's own options go, unless an assignment sets them, which is an error that names the closest key.
        """
        values, assignments = self.model_dump(mode="json"), list(assignments)
        classes = {"model": lambda name: find_model(name).config_class, "protocol": config_class}
        for section, config in {"model": self.model, "protocol": self.protocol}.items():
            name = _text(f"{section}.name", assignments)
            if name is not None and name != values[section]["name"]:
                shared = classes[section](name).model_fields
                values[section] = {
                    key: value
                    for key, value in values[section].items()
                    if key in shared and key in config.model_fields_set
                }
        for text in assignments:
            _require_place(text.partition("=")[0].strip(), values)
        return self.parse(apply_overrides(values, assignments))

    def to_yaml(self) -> str:
        """What `read` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The experiment of a file that `to_yaml` or an older version of it has written."""
        if not path.exists():
            raise UserError(f"there is no configuration at {path}")
        return cls.parse_saved(read_yaml(path))

    @classmethod
    def parse_saved(cls, values: Mapping[str, Any]) -> Self:
        """Validate what was saved, by this version or an older one."""
        protocol = values.get("protocol")
        known = {"protocol": migrated_protocol(protocol)} if isinstance(protocol, Mapping) else {}
        return cls.parse({**values, **known})


def _require_place(key: str, values: Mapping[str, Any]) -> None:
    """Raise where a key lies in none of the sections; where its last part lies in one, that is said."""
    first, *rest = key.split(".")
    if not key or (first in values and (not rest or isinstance(values[first], dict))):
        return
    name = (rest or [first])[-1]
    places = [f"{section}.{name}" for section, inner in values.items() if isinstance(inner, dict) and name in inner]
    if places:
        raise UserError(f"unknown key {cut(key)}; did you mean {' or '.join(map(repr, places))}?")
    raise unknown_name("key", key, values)


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


def assigned(wanted: str, assignments: Iterable[str]) -> Any:
    """The value that assignments give a key; ``None`` where they do not."""
    text = _text(wanted, assignments)
    return None if text is None else apply_overrides({}, [f"value={text}"])["value"]


def _text(wanted: str, assignments: Iterable[str]) -> str | None:
    for assignment in reversed(list(assignments)):
        key, _, value = assignment.partition("=")
        if key.strip() == wanted:
            return value.strip()
    return None
