"""What the command lines of the laboratory's scripts share."""

from __future__ import annotations

import argparse
from pathlib import Path


def out_and_numbers(description: str | None, **numbers: float) -> argparse.Namespace:
    """The options of a script that writes to ``--out`` and takes ``numbers``, of which the defaults are given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=type(number), default=number)
    return parser.parse_args()


def run_command(parser: argparse.ArgumentParser) -> int:
    """Exit code of the command that was asked for: the option ``act`` of its own parser."""
    options = parser.parse_args()
    code: int = options.act(options)
    return code
