"""Strict, frozen configuration objects and the ``a.b=c`` overrides of the command line."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from factformer._support.documents import parse_yaml
from factformer._support.text import cut
from factformer.errors import UserError

MOST_COMPLAINTS = 4
"""Mistakes of a configuration that one message names."""


class Config(BaseModel):
    """Base of every configuration: immutable, typed, numbers are finite, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_values_are_no_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(item, bool) for item in values):
            field = cls.model_fields[str(info.field_name)]
            if bool not in _types_in(field.annotation):
                raise ValueError("true and false are no valid values here")
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Validate ``values``; a failure is one line that names the key and the closest valid one."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UserError(describe_validation_error(cls, error, where)) from None

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some values changed."""
        return self.parse({**self.model_dump(), **changes})

    def fingerprint(self) -> str:
        """A short hash of every value: two configurations that differ anywhere differ here."""
        return fingerprint(self.model_dump(mode="json"))


def _types_in(annotation: Any) -> set[Any]:
    """A type and all that it is made of: of ``bool | None`` also ``bool``."""
    return {annotation}.union(*(_types_in(part) for part in get_args(annotation)))


def fingerprint(values: Any) -> str:
    """Hash of a JSON-like value, independent of key order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """The error for a name that is not among ``choices``: says what there is and guesses what was meant."""
    names = sorted(choices)
    close = difflib.get_close_matches(name[:200], names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return UserError(f"unknown {kind} {cut(name)}{hint} Choices: {', '.join(names)}")


def describe_validation_error(cls: type[BaseModel], error: ValidationError, where: str) -> str:
    parts: dict[str, str] = {}
    found = error.errors()
    for item in found:
        # Where a value may be of several types, each of them complains, with its name at the end of the place.
        place = [str(part) for part in item["loc"] if not _names_a_type(str(part))]
        path = ".".join([where] * bool(where) + place)
        if item["type"] == "extra_forbidden":
            names = _fields_at(cls, item["loc"][:-1])
            parts[path] = str(unknown_name("key", path, [".".join([*path.split(".")[:-1], n]) for n in names]))
        elif path not in parts:
            listed = isinstance(item["input"], str) and "," in item["input"]
            hint = f"; a list is written [{item['input']}]" if listed else ""
            parts[path] = f"{path}: {item['msg']} (got {cut(item['input'])}){hint}"
    shown = list(parts.values())[:MOST_COMPLAINTS]
    rest = len(parts) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest > 0 else "")


def _names_a_type(part: str) -> bool:
    """Whether a part of a place is pydantic's name of a type and no key."""
    return "[" in part or part in ("constrained-int", "constrained-float", "int", "float", "str", "bool")


def _fields_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        field = cls.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        cls = field.annotation
    return list(cls.model_fields)


def apply_overrides(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of the nested mapping ``values`` with ``"a.b=c"`` assignments applied; ``c`` is read as YAML."""
    result: dict[str, Any] = json.loads(json.dumps(values))
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not separator or not all(keys):
            raise UserError(
                f"--set takes KEY=VALUE with a dotted key, as in training.updates=100; got {cut(assignment)}"
            )
        section = result
        for depth, key in enumerate(keys[:-1]):
            if not isinstance(section.get(key), dict):
                here = ".".join(keys[:depth])
                raise unknown_name(
                    "section",
                    ".".join([here] * bool(here) + [key]),
                    [k for k, v in section.items() if isinstance(v, dict)],
                )
            section = section[key]
        value = _parse_scalar(text, f"--set {path.strip()}={cut(text)}")
        if isinstance(value, dict) and isinstance(section.get(keys[-1]), dict):
            value = {**section[keys[-1]], **value}
        section[keys[-1]] = value
    return result


def assignment(key: str, value: Any) -> str:
    """``"key=value"`` that `apply_overrides` reads as exactly this value, whatever a string looks like."""
    return f"{key}={json.dumps(value, ensure_ascii=False, default=_plain)}"


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Assignments of dotted keys; a text stands as it would on the command line."""
    return [f"{key}={value}" if isinstance(value, str) else assignment(key, value) for key, value in values.items()]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # scalars of NumPy and PyTorch; paths


def _parse_scalar(text: str, where: str) -> Any:
    value = parse_yaml(text, where)
    if isinstance(value, str) and text.lstrip()[:1] in ('"', "'"):
        return value
    if isinstance(value, bool) and text.strip().lower() not in ("true", "false"):
        return text.strip()  # YAML 1.1 reads off, on, yes and no as truth values; options have such names
    if isinstance(value, str):  # YAML 1.1 reads 1e-4 as a string
        try:
            return float(value)
        except ValueError:
            return value
    return value
