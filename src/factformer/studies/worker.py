"""One run of a study in a process of its own.

``python -m factformer.studies.worker STUDY.yaml INDEX ANSWER.json [DEVICE]``

Its standard input is a pipe from the study. Where the study is killed, the pipe closes and this process ends too. The
next study then finds the run free and resumes it from its checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from factformer._support.documents import finite
from factformer.plugins import bring_plugins
from factformer.studies.combinations import Study
from factformer.studies.runner import Ended, Runner
from factformer.studies.study_folder import StudyFolder


def run_one(file: Path, index: int, device: str | None = None) -> Ended:
    """Do the run with this number of the study in whose folder ``file`` lies, or find it done."""
    study = Study.read(file)
    if study.plugins:
        bring_plugins(study.plugins)
    runner = Runner(device=device, say=lambda message: print(message, file=sys.stderr, flush=True))
    folder = StudyFolder(file.parent, study.scale, runner, minutes_per_run=study.budget_minutes)
    return folder.do(study.trainings()[index])


def end_with_the_study() -> None:
    """End this process as soon as the one that started it has ended, however that ended."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(1)

    if os.name == "posix":  # elsewhere, a read that waits blocks whatever else asks for the standard input
        threading.Thread(target=wait, name="end with the study", daemon=True).start()


def main(words: list[str]) -> None:
    end_with_the_study()
    file, index, answer, *device = words
    ended = run_one(Path(file), int(index), next(iter(device), "") or None)
    Path(answer).write_text(json.dumps(finite(asdict(ended))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
