"""Other packages' announcements, kept from the user."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silenced(logger: str, level: int) -> Iterator[None]:
    """Without warnings, and without what ``logger`` says below ``level``."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


@contextmanager
def unwarned(beginning: str) -> Iterator[None]:
    """Without the warnings that begin with these words."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=beginning)
        yield
