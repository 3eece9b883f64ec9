"""A grid cut over several processes gives what one process gives: predictions and gradients, to round-off."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import factformer
from factformer.errors import UserError
from factformer.parallel.part import cut_points

CASES = Path(__file__).with_name("domain_cases.py")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("extent", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_cut_grid_gives_the_same_prediction_and_gradients(tmp_path, size, extent):
    words = [sys.executable, str(CASES), str(tmp_path / "rendezvous")]
    processes = [
        subprocess.Popen(
            [*words, str(rank), str(size), extent], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    answers = [process.communicate(timeout=600) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    found = json.loads(answers[0][0].splitlines()[-1])
    assert {name: value for name, value in found.items() if value > 1e-10} == {}


def train(folder, devices, domain, model, *flags, code=0):
    words = [sys.executable, str(CASES.with_name("domain_run.py")), str(folder), str(devices), str(domain), model]
    done = subprocess.run([*words, *flags], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return lines_of(folder)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, 1, "factformer_plus")


def same(ours, theirs):
    for key in ("loss", "gradient_norm", "validation"):
        values = [[line[key] for line in lines if key in line] for lines in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize(("devices", "domain"), [(2, 2), (4, 2)])
def test_training_on_a_cut_grid_follows_that_of_one_process(alone, tmp_path, devices, domain):
    same(train(tmp_path / "run", devices, domain, "factformer_plus"), alone)


def test_a_run_is_resumed_on_another_cut_and_loads_on_one_process(alone, tmp_path):
    folder = tmp_path / "run"
    assert len(train(folder, 4, 4, "factformer_plus", "stop")) == 4  # both axes are cut
    same(train(folder, 2, 2, "factformer_plus", "resume"), alone)
    assert factformer.load(folder / "bundle").part is None


def test_a_process_killed_in_a_sum_ends_the_job_in_one_line_and_it_resumes(alone, tmp_path):
    folder = tmp_path / "run"
    script = CASES.with_name("domain_run.py")
    words = [sys.executable, str(script), str(folder), "2", "2", "factformer_plus", "dies"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    seconds = time.time() - (folder / "died").stat().st_mtime
    assert done.returncode == 1, done.stdout + done.stderr
    assert seconds < 30
    advice = f"resume from the last checkpoint with `factformer train --resume --out {folder}`"
    assert f"a process of the run was lost; {advice}" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert 4 <= len(lines_of(folder)) < 10
    same(train(folder, 1, 1, "factformer_plus", "resume"), alone)


def test_cuts_are_even_and_at_multiples():
    assert cut_points(10, 3) == (0, 3, 6, 10)
    assert cut_points(13, 2, multiple=2) == (0, 6, 13)
    with pytest.raises(UserError, match="cannot be cut into 4 parts"):
        cut_points(5, 4, multiple=2)
