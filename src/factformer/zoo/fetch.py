"""Fetching a file whose size and checksum are known: resumed where it was cut, kept only if it is whole and right."""

from __future__ import annotations

import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from factformer import __version__
from factformer._support.files import file_checksum, size_text
from factformer._support.text import first_line
from factformer.errors import UserError
from factformer.zoo.index import FileEntry

ATTEMPTS = 3
"""Calls in a row that may bring nothing before the address counts as unreachable."""
RETRIED = (416, 429, 500, 502, 503, 504)
"""What a server may answer and do better the next time."""
TIMEOUT = 30.0
"""Seconds that a server may be silent."""
CHUNK = 2**18
LONGEST_TEXT = 2**22

Progress = Callable[[int], None]
"""Hears how many bytes of the file are there."""


def fetch_text(address: str) -> str:
    """A small text, such as an index."""
    try:
        with _open(address, 0) as answer:
            content: bytes = answer.read(LONGEST_TEXT + 1)
    except (OSError, HTTPException) as error:
        raise unreachable(address, error) from None
    if len(content) > LONGEST_TEXT:
        raise UserError(f"{address} is larger than {size_text(LONGEST_TEXT)}: it is no index of a zoo")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{address} is no UTF-8 text: it is no index of a zoo") from None


def fetch_file(address: str, target: Path, wanted: FileEntry, progress: Progress = lambda done: None) -> None:
    """Write the file at ``address`` to ``target``; what is there of an earlier try is taken up."""
    part = part_of(target)
    resumed = part.exists()
    furthest, idle = _size(part), 0
    while (have := _size(part)) < wanted.size:
        reason: Exception | None = None
        try:
            _receive(address, part, have, wanted.size, progress)
        except HTTPError as error:
            if error.code not in RETRIED:
                raise unreachable(address, error) from None
            if error.code == 416:  # there is no more of it, and it is not enough: it is another file
                part.unlink()
            reason = error
        except (OSError, HTTPException) as error:
            reason = error
        idle = 0 if _size(part) > furthest else idle + 1
        furthest = max(furthest, _size(part))
        if idle == ATTEMPTS:
            cut = UserError(f"{address} ends after {size_text(furthest)} of {size_text(wanted.size)}; try again later")
            raise cut if reason is None else unreachable(address, reason) from None
    if not keep_if_right(part, target, wanted, address, complain=not resumed):
        fetch_file(address, target, wanted, progress)  # the first part was of something else: once more from the start


def keep_if_right(part: Path, target: Path, wanted: FileEntry, where: str, *, complain: bool = True) -> bool:
    """Give ``part`` its name if it has the right size and checksum; else it goes."""
    if _size(part) == wanted.size and file_checksum(part) == wanted.sha256:
        os.replace(part, target)
        return True
    part.unlink()
    if complain:
        raise UserError(
            f"{where} does not match its checksum in the index of the zoo, and is not kept; try again later"
        )
    return False


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


class Unreachable(UserError):  # noqa: N818 - says what happened
    """An address gives no answer, or not what is asked for."""


def unreachable(address: str, error: Exception) -> Unreachable:
    if isinstance(error, HTTPError):
        return Unreachable(f"{address} answers {error.code} {error.reason}; check the address of the zoo")
    reason = error.reason if isinstance(error, URLError) else error
    text = first_line(reason) if isinstance(reason, BaseException) else str(reason)
    return Unreachable(
        f"cannot reach {address} ({text}): without a network, copy the bundle's folder here and set FACTFORMER_ZOO to "
        "the folder it lies in"
    )


def _receive(address: str, part: Path, have: int, size: int, progress: Progress) -> None:
    """Add what the server gives to ``part``; a server that cannot continue begins anew."""
    with _open(address, have) as answer:
        continues = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and not continues:
            have = 0
        with part.open("ab" if continues else "wb") as file:
            while have <= size and (chunk := answer.read(CHUNK)):
                file.write(chunk[: size + 1 - have])  # one byte too many is enough to know
                have += len(chunk)
                progress(min(have, size))


def _open(address: str, first: int):  # type: ignore[no-untyped-def]  # urllib's answers have no public type
    if not address.startswith(("https://", "http://")):
        raise UserError(f"the address of a zoo begins with https:// or http://, got {address!r}")
    headers = {"User-Agent": f"factformer/{__version__}", "Accept-Encoding": "identity"}
    if first:
        headers["Range"] = f"bytes={first}-"
    return urlopen(Request(address, headers=headers), timeout=TIMEOUT)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
