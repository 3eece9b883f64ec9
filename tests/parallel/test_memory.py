"""What a process needs falls with the number of processes that share the grid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("memory_run.py")


def peaks(tmp_path, size):
    """Megabytes of a training step in each of so many processes."""
    words = [sys.executable, str(SCRIPT), str(tmp_path / f"rendezvous{size}")]
    # Freed memory goes back to the system at once: otherwise the resident set says what the allocator keeps.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*words, str(rank), str(size)], env=environment, **pipes) for rank in range(size)]
    answers = [process.communicate(timeout=300) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    return [float(output) for output, _ in answers]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident set is known on Linux")
def test_peak_memory_falls_with_the_number_of_processes(tmp_path):
    (alone,) = peaks(tmp_path, 1)
    assert alone > 500  # activations: weights have 0.1 MB
    for size in (2, 4):
        for peak in peaks(tmp_path, size):
            assert peak * size == pytest.approx(alone, rel=0.1)
