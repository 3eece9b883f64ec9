"""One run of a study in a process of its own.

``python -m factformer.studies.worker STUDY.yaml INDEX ANSWER.json [DEVICE]``
"""

from __future__ import annotations

import json
import sys
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


def main(words: list[str]) -> None:
    file, index, answer, *device = words
    ended = run_one(Path(file), int(index), next(iter(device), "") or None)
    Path(answer).write_text(json.dumps(finite(asdict(ended))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
