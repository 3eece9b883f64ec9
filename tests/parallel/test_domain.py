"""A grid cut over several processes gives what one process gives: predictions and gradients, to round-off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from factformer.errors import UserError
from factformer.parallel.part import cut_points

CASES = Path(__file__).with_name("domain_cases.py")


@pytest.mark.parametrize("size", [2, 4])
def test_a_cut_grid_gives_the_same_prediction_and_gradients(tmp_path, size):
    words = [sys.executable, str(CASES), str(tmp_path / "rendezvous")]
    processes = [
        subprocess.Popen([*words, str(rank), str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    answers = [process.communicate(timeout=600) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    found = json.loads(answers[0][0].splitlines()[-1])
    assert {name: value for name, value in found.items() if value > 1e-10} == {}


def test_cuts_are_even_and_at_multiples():
    assert cut_points(10, 3) == (0, 3, 6, 10)
    assert cut_points(13, 2, multiple=2) == (0, 6, 13)
    with pytest.raises(UserError, match="cannot be cut into 4 parts"):
        cut_points(5, 4, multiple=2)
