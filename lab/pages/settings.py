"""docs/reference/settings.md: every key that ``--set`` and ``settings=`` take, made from the configurations."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from factformer import catalog
from factformer.config import Config
from factformer.models._backbone import ModelConfig, find_model
from factformer.protocols import ProtocolConfig, config_class
from factformer.training.experiment.config import DataConfig, TrainingConfig
from lab import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"
INTRODUCTION = """\
# Settings

Every key of an experiment, with its default. On the command line `--set training.updates=500`, in Python
`fit(..., settings={"training.updates": 500})`, in a file the `config.yaml` of a run folder. An unknown key is an error
that names the closest one. Recipes and `fit` choose other values than these defaults: `factformer train RECIPE` writes
what it used to `config.yaml`.

This page is made from the configurations by `python -m lab.pages.make`.
"""
BOUNDS = {Ge: "at least", Gt: "more than", Le: "at most", Lt: "less than"}
NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}


def settings_page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    parts += section("training", "Length, optimiser, schedule and bookkeeping.", TrainingConfig, ())
    parts += section("data", "Which frames, and where they are kept.", DataConfig, ())
    parts += ["## protocol\n", "What one update trains on. `protocol.name` chooses; each has keys of its own.\n"]
    for name in catalog.names("protocols"):
        parts += section(f"protocol.name={name}", "", config_class(name), (ProtocolConfig,), level=3)
    parts += section("model", "What every model understands. `model.name` chooses the model.", ModelConfig, ())
    for name in catalog.names("models"):
        parts += section(f"model.name={name}", "", find_model(name).config_class, (ModelConfig,), level=3)
    return "\n".join(parts)


def section(title: str, text: str, config: type[Config], known: tuple[type[Config], ...], level: int = 2) -> list[str]:
    """The keys of a configuration that are not alike in those ``known`` already."""
    lines = [f"{'#' * level} {title}\n"] + ([f"{text}\n"] if text else [])
    rows = []
    for key, field in config.model_fields.items():
        text = meaning(config, key)
        before = [base for base in known if key in base.model_fields]
        if key == "name" or any(same(field, base.model_fields[key]) and text == meaning(base, key) for base in before):
            continue
        rows.append(entry(key, field, text))
    return [*lines, *(rows or ["It has no further keys."]), ""]


def entry(key: str, field: FieldInfo, text: str) -> str:
    default = "" if field.default is PydanticUndefined else f"`{shown(field.default)}`; "
    line = f"- **`{key}`** ({default}{allowed(field)})" + (f": {text}" if text else "")
    return textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def same(first: FieldInfo, second: FieldInfo) -> bool:
    return first.annotation == second.annotation and first.default == second.default


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def allowed(field: FieldInfo) -> str:
    """The type and the bounds in words."""
    found = ((part, BOUNDS.get(type(part))) for part in field.metadata)
    bounds = [f"{word} {number(getattr(part, type(part).__name__.lower()))}" for part, word in found if word]
    return ", ".join([kind_of(field.annotation), *bounds])


def number(value: float) -> str:
    """Large powers of 2 and of 10 as such."""
    for base, exponents in ((2, range(17, 64)), (10, range(5, 19))):
        for exponent in exponents:
            if value == base**exponent:
                return f"{base}^{exponent}"
    return f"{value:g}"


def kind_of(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is typing.Annotated:
        return kind_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind_of(part) for part in arguments))
    if origin is tuple:
        return f"list of {kind_of(arguments[0])}s"
    return NAMES.get(annotation, str(annotation))


def meaning(config: type[Config], key: str) -> str:
    """The text below a key in its class, or in the one that it comes from."""
    for base in config.__mro__:
        if issubclass(base, Config) and key in (texts := attribute_texts(base)):
            return " ".join(texts[key].replace("``", "`").split())
    return ""


@cache
def attribute_texts(config: type[Config]) -> dict[str, str]:
    """The strings that stand below the attributes of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(definition, ast.ClassDef)
    return dict(_texts(definition.body))


def _texts(body: list[ast.stmt]) -> Iterable[tuple[str, str]]:
    for statement, after in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match after:
                case ast.Expr(ast.Constant(str(text))):
                    yield statement.target.id, text
