"""Text that comes from files or people, made fit for a terminal, a figure, a table or a file name."""

from __future__ import annotations

import hashlib
import re

LONGEST_FILE_STEM = 80


def printable(text: str) -> str:
    """``text`` in one line without control characters: a terminal shows them and does not obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, length: int) -> str:
    """``text`` cut to ``length`` characters; an ellipsis stands for what is missing."""
    return text if len(text) <= length else text[: length - 1] + "…"


def cut(value: object, length: int = 80) -> str:
    """``repr(value)`` for a message: one line, and not a long one."""
    return shortened(repr(value), length)


def first_line(error: BaseException, length: int = 200) -> str:
    """The first line of an error's message, at most so many characters of it; its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:length]


def file_stem(text: str) -> str:
    """``text`` as a part of a file name: as it is where that can be done, else changed and told apart by a hash."""
    plain = re.sub(r"[^\w.+ -]", "_", text)
    if plain == text and len(text.encode()) <= LONGEST_FILE_STEM:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.encode('ascii', 'replace').decode().replace('?', '_')[:LONGEST_FILE_STEM]}-{mark}"
