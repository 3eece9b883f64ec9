"""Kill a run at any moment, resume it, and get the bits of one that was never killed."""

import json
import os
import random
import signal
import time

import pytest
from killable_runs import assert_all_checkpoints_load, assert_same_run, finish_run, log, start_run

PROTOCOLS = ["latent_marching", "autoregressive"]
CHECKPOINT_EVERY = 11


def last_logged(folder) -> int:
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["update"]
    except (OSError, IndexError, json.JSONDecodeError):
        return 0


def kill_after(process, seconds=None, folder=None, update=None):
    """SIGKILL after some time, or when the log has reached an update."""
    begin = time.monotonic()
    while process.is_alive() and time.monotonic() - begin < (60 if seconds is None else seconds):
        if folder is not None and last_logged(folder) >= update:
            break
        time.sleep(0.002)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, protocol):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    finish_run(straight, protocol=protocol)
    for update in (14, 42):  # before the first validation, and with curriculum and pushforward behind it
        kill_after(start_run(killed, resume=True, protocol=protocol), folder=killed, update=update)
        reached, safe = last_logged(killed), assert_all_checkpoints_load(killed)
        assert reached >= update
        assert reached - safe <= CHECKPOINT_EVERY
    finish_run(killed, resume=True, protocol=protocol)
    assert_same_run(straight, killed)
    assert [line["update"] for line in log(killed)] == [7, 14, 20, 21, 28, 35, 40, 42, 49, 56, 60]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_twenty_random_kill_points(tmp_path, protocol):
    straight = tmp_path / "straight"
    begin = time.monotonic()
    finish_run(straight, protocol=protocol)
    duration = time.monotonic() - begin
    moments = random.Random(protocol)
    for trial in range(20):
        killed = tmp_path / f"killed-{trial}"
        kill_after(start_run(killed, protocol=protocol), seconds=moments.uniform(0, duration))
        reached, safe = last_logged(killed), assert_all_checkpoints_load(killed)
        assert reached - safe <= CHECKPOINT_EVERY
        finish_run(killed, resume=True, protocol=protocol)
        assert_same_run(straight, killed)


def test_a_finished_run_resumes_to_itself(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        finish_run(folder, updates=12)
    finish_run(other, resume=True, updates=12)
    assert_same_run(one, other)
