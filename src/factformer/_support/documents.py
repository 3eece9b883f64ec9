"""Documents, JSON and YAML: read with limits, and JSON written strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from factformer._support.files import read_text
from factformer._support.text import cut, printable, shortened
from factformer.errors import UserError

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LONGEST_YAML = 2**22
Result = TypeVar("Result")
DEEPEST = 32
"""Levels of lists and mappings; ours have up to 6."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; NaN and infinity, which JSON does not know, are refused."""
    values = parse_json(read_text(path), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object; make or copy it again")
    _require_shallow(values, path)
    if finite(values) != values:
        raise UserError(f"{path} holds NaN or infinity, which JSON does not know; make or copy it again")
    return values


def read_typed(path: Path, reader: TypeAdapter[Result], what: str, command: str) -> Result:
    """The object in a JSON file; one line says what is wrong with a file that holds no such object.

    ``what`` names the object, such as "an evaluation", and ``command`` what makes it anew.
    """
    values = read_json(path)
    try:
        return reader.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(printable(shortened(str(part), 40)) for part in first["loc"]) or "it"
        found = "" if first["type"] == "missing" else f", got {cut(first['input'])}"
        raise UserError(
            f"{path} is not {what} of this factformer ({where}: {first['msg']}{found}); run `{command}` again"
        ) from None


def parse_json(text: str, where: str) -> Any:
    """What JSON says; deep nesting and broken text are named in one line."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply to be read: it is damaged") from None
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error}); make or copy it again") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file (`parse_yaml`)."""
    values = parse_yaml(read_text(path, LONGEST_YAML), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold names and values, such as `frame_dt: 0.1`")
    return values


def parse_yaml(text: str, where: str) -> Any:
    """Plain values of YAML: no aliases, which can unfold to any size, no deep nesting, no dates and the like."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=YAML_LOADER):
            if getattr(event, "anchor", None) is not None:
                raise UserError(f"{where}: YAML with anchors and aliases (& and *) is not read; write the values out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise UserError(f"{where} is nested more than {DEEPEST} levels deep: settings need only a few")
        return _require_plain(yaml.load(text, Loader=YAML_LOADER), where)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    except UserError:
        raise
    except ValueError as error:  # a date such as 2020-99-99, a number of thousands of digits
        raise UserError(f"{where} holds a value that cannot be read: {cut(str(error))}") from None


def json_text(values: Any) -> str:
    """Strict JSON: a number that is not finite is null."""
    return json.dumps(finite(values), indent=2, allow_nan=False) + "\n"


def finite(values: Any) -> Any:
    """A copy of a JSON-like value in which NaN and infinity, which JSON does not know, are None."""
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values


def _require_shallow(values: dict[str, Any], path: Path) -> None:
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        children = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [value for items in children for value in items if isinstance(value, (dict, list))]
        if not level:
            return
    raise UserError(f"{path} is nested more than {DEEPEST} levels deep: it is not what factformer writes")


def _require_plain(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float)):
                raise UserError(f"{where}: {cut(key)} is no name of a value; quote it")
            _require_plain(item, where)
    elif isinstance(value, list):
        for item in value:
            _require_plain(item, where)
    elif value is not None and not isinstance(value, (str, int, float)):
        raise UserError(f"{where}: {cut(value)} is no text, number, list or mapping; quote it if it is a text")
    return value
