"""The tests that need a GPU, and how they ended.

python -m lab.checks.suite --out results/speed/gpu_tests_h200.json
python -m lab.checks.suite --workers 4 --out results/speed/gpu_tests_h200.json     side by side, with pytest-xdist
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from lab import ROOT
from lab.checks.common import keep, options


def gpu_files() -> list[str]:
    """Test files that say they need a GPU: collecting the others may ask for packages that a GPU machine lacks."""
    found = (path for path in sorted((ROOT / "tests").rglob("test_*.py")))
    return [str(path.relative_to(ROOT)) for path in found if "mark.gpu" in path.read_text(encoding="utf-8")]


def main() -> int:
    chosen, began = options(__doc__, ("--workers", {"type": int, "default": 0})), time.perf_counter()
    tests = ["tests/kernels/test_kernels_gpu.py"] if chosen.tiny else gpu_files()
    beside = ["-n", str(chosen.workers), "--dist", "load"] if chosen.workers else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *beside, f"--junitxml={report}", *tests]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
        print(done.stdout[-6000:], done.stderr[-2000:], flush=True)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    bad = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    keep(chosen.out, "suite", began, **counts, bad=bad, pytest="pytest -m gpu tests")
    return done.returncode if not chosen.tiny else 0


if __name__ == "__main__":
    sys.exit(main())
