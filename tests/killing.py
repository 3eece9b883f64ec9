"""A process that is killed while it writes its files."""

import os
from collections.abc import Callable
from pathlib import Path

import torch


def exit_code_when_killed(work: Callable[[], object], killed_at: int) -> int:
    """Of a process that does ``work`` and is killed (9) before the file of this number takes its place."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        replace, calls = Path.replace, []

        def kill(self, target):
            calls.append(target)
            if len(calls) == killed_at:
                os._exit(9)
            return replace(self, target)

        Path.replace = kill
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
