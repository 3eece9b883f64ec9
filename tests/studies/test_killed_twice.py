"""A study of three models and three seeds on two processes, killed twice at a random moment and resumed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

WORDS = ["study", "kolmogorov", "--models", "factformer,fno,ffno", "--seeds", "3", "--scale", "tiny", "--jobs", "2"]
CLOCK = ("seconds_per_sequence", "peak_memory_mb", "training_seconds")


def start(out):
    """The command in a process group of its own, so that its workers can be killed with it."""
    words = [sys.executable, "-m", "factformer", *WORDS, "--device", "cpu", "--out", str(out), "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)


def table(process):
    answer, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    found = json.loads(answer)
    assert found["complete"] and len(found["runs"]) == 9
    return [
        [{key: value for key, value in row.items() if key not in CLOCK} for row in found[part]]
        for part in ("rows", "runs")
    ]


@pytest.mark.slow
def test_killed_twice_the_table_is_the_same_to_the_bit(tmp_path):
    began = time.monotonic()
    expected = table(start(tmp_path / "whole"))
    whole = time.monotonic() - began
    draw = random.Random(os.environ.get("KILL_SEED", "27"))
    for _ in range(2):
        process = start(tmp_path / "killed")
        time.sleep(draw.uniform(0.25, 0.6) * whole)
        done = len(list((tmp_path / "killed").glob("runs/*/done.json")))
        assert process.poll() is None, "the study ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"killed with {done} of 9 runs done")
        assert done < 9
    assert table(start(tmp_path / "killed")) == expected
