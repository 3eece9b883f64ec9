"""The tutorial as a notebook: the same words and the same code, cell by cell."""

from __future__ import annotations

import json
import re
from typing import Any

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebook(page: str) -> str:
    """The JSON of a notebook with the text of ``page`` and its blocks of Python and commands as cells to run."""
    cells: list[dict[str, Any]] = []
    end = 0
    for block in BLOCK.finditer(page):
        cells.append(_text(page[end : block.start()]))
        language, code = block.groups()
        lines = code.strip().splitlines()
        cells.append(_code(lines if language == "python" else [f"!{line}" for line in lines]))
        end = block.end()
    cells.append(_text(page[end:]))
    kept = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cell for cell in cells if cell["source"])]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    content = {"cells": kept, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _text(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text.strip().splitlines())}


def _code(lines: list[str]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": _lines(lines)}


def _lines(lines: list[str]) -> list[str]:
    return [*(f"{line}\n" for line in lines[:-1]), *lines[-1:]]
