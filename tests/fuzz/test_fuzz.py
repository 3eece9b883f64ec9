"""Damaged files and odd command lines: always a clear line or the right numbers, never a crash, a hang or a guess.

300 inputs by default, 10,000 with ``-m slow``; ``python tests/fuzz --help`` runs any number and prints a table.
"""

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from arena import RAW, Arena, Outcome
from doors import DOORS, attack
from judging import judge, same_prediction, same_scores

INPUTS = int(os.environ.get("FUZZ_INPUTS", "300"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))


def attack_door(arena, kit, folder, door, num_inputs):
    """Failures of some inputs, each in words that make it again."""
    found = [attack(arena, kit, folder / str(index), SEED, door, index)[1] for index in range(num_inputs)]
    failures = [failure for failure in found if failure]
    lines = [f"--seed {SEED} --door '{f.door}' --index {f.index}: {f.what}: {f.reason}: {f.message}" for f in failures]
    assert not failures, "\n".join([f"{len(failures)} of {num_inputs}; each again: python tests/fuzz ...", *lines])


@pytest.mark.parametrize("door", DOORS)
def test_damaged_input_is_refused_in_one_line_or_gives_the_same_numbers(arena, kit, tmp_path, door):
    attack_door(arena, kit, tmp_path, door, math.ceil(INPUTS / len(DOORS)))


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_ten_thousand_damaged_inputs(arena, kit, tmp_path, door):
    attack_door(arena, kit, tmp_path, door, math.ceil(10_000 / len(DOORS)))


@pytest.mark.parametrize("door", DOORS)
def test_a_seed_makes_the_same_damage_again(kit, tmp_path, door):
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(DOORS[door](Random(7), kit, tmp_path / name))
    assert (made[0].what, made[0].words) == (made[1].what, made[1].words)


def test_nothing_outlives_a_command(arena, tmp_path):
    left = int(arena.run([], tmp_path, task="leave").out)
    patience = time.monotonic() + 30  # a killed process takes its time to go where the machine is busy
    while is_alive(left) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not is_alive(left)


def is_alive(process):
    """Whether a process of that number exists and has not ended; one that has ended may wait to be collected."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_the_warm_process_ends_with_its_arena():
    with Arena() as arena:
        process = arena._process
        assert process.poll() is None
    assert process.poll() is not None


def test_what_stands_in_the_place_of_a_result_is_not_read_for_ever(arena, kit, tmp_path):
    os.mkfifo(tmp_path / "p.npy")
    (tmp_path / "evaluation.json").symlink_to("/dev/zero")
    assert "other predictions" in same_prediction(kit, tmp_path)(arena)
    assert "other errors" in same_scores(kit, tmp_path)(arena)


GOOD = Outcome(
    code=2, signal=0, seconds=0.1, megabytes=10.0, out="", err="factformer: x.npy is damaged; copy it again\n"
)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"seconds": float("inf")}, "hangs"),
        ({"signal": 11, "code": -1}, "signal 11"),
        ({"code": RAW, "err": "Traceback (most recent call last):\nKeyError: 'x'\n"}, "traceback of KeyError"),
        ({"code": 1, "err": "factformer: KeyError: 'x' (run again with --debug for the traceback)\n"}, "raw KeyError"),
        ({"code": 5}, "exit code 5"),
        ({"megabytes": 1001.0}, "takes 1001 MB"),
        ({"err": ""}, "0 lines"),
        ({"err": "Warning: odd\nfactformer: x\n"}, "2 lines"),
        ({"err": "factformer: " + "x" * 1000}, "a line of 1012 characters"),
        ({"code": 0, "err": "x.py:1: RuntimeWarning: overflow\n"}, "complains"),
        ({"err": "factformer: \x1b[31m\n"}, "control characters"),
        ({"code": 0, "err": "", "out": "\u202egpj.exe\n"}, "control characters"),
    ],
)
def test_the_judge_sees_what_a_command_must_not_do(bad, reason):
    assert judge(GOOD) is None
    assert reason in judge(replace(GOOD, **bad))
