"""Commands stopped at a file-system event and run again: the same bits, nothing left over, a line that helps.

A few events of every command by default, all of them with ``-m slow``.
"""

import shutil

import pytest
from arena import KILLED
from kills import COMMANDS, compare, kill, read_tree, run_straight

EVENTS = 3


def stop_and_repeat(arena, kit, folder, command, num_events=None):
    straight = run_straight(arena, kit, folder / "run", COMMANDS[command])
    total = len(straight.events)
    assert total >= 8
    count = num_events or total
    numbers = sorted({1 + index * (total - 1) // max(count - 1, 1) for index in range(count)})
    wrong = {
        f"event {number} of {total}, {straight.events[number - 1]}": found
        for number in numbers
        if (found := kill(arena, kit, folder / "run", COMMANDS[command], straight, number))
    }
    assert not wrong, "\n".join(f"{event}: {found}" for event, found in wrong.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_stopped_at_some_events_and_run_again(arena, kit, tmp_path, command):
    stop_and_repeat(arena, kit, tmp_path, command, EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_stopped_at_every_event_and_run_again(arena, kit, tmp_path, command):
    stop_and_repeat(arena, kit, tmp_path, command)


def test_the_comparison_sees_what_a_stopped_command_leaves(arena, kit, tmp_path):
    folder, command = tmp_path / "run", COMMANDS["convert"]
    straight = run_straight(arena, kit, folder, command)
    number = 1 + straight.events.index("before os.rename new/.train.hdf5.partial/data.hdf5")
    shutil.rmtree(folder / "new")
    assert arena.run(command.split(), folder, stop_at=number).code == KILLED
    assert "left over" in compare(straight.tree, read_tree(folder))
