"""Records on disk, JSON objects and YAML mappings: read with limits, and JSON written strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer import config
from factformer._support.files import read_text
from factformer.errors import UserError

DEEPEST = 50
"""Levels of nesting; ours have up to 6."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; NaN and infinity, which JSON does not know, are refused."""
    text = read_text(path)
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read: it is damaged") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); make or copy it again") from None
    return _checked(path, values, "JSON object")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file."""
    return _checked(path, config.read_yaml(path), "YAML mapping")


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


def _checked(path: Path, values: Any, kind: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a {kind}; make it again")
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        children = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [value for items in children for value in items if isinstance(value, (dict, list))]
        if not level:
            return values
    raise UserError(f"{path} is nested more than {DEEPEST} levels deep: it is not what factformer writes")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}")
