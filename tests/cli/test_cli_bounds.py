"""Whole numbers on the command line have bounds: a slip is named before anything begins."""

import pytest

from factformer.cli import main

OPTIONS = {
    "generate kolmogorov_flow --out g": (
        ["--trajectories", "--resolution", "--simulation-resolution", "--seed", "--batch-size"]
    ),
    "convert x.npy --out c": ["--resolution"],
    "train demo --out r": ["--devices", "--num-nodes"],
    "evaluate run": ["--frames", "--starts", "--stride", "--batch-size", "--samples"],
    "inspect run": ["--samples"],
    "rollout bundle --input x.npy --out p.npy": ["--frames", "--start"],
    "demo": ["--updates"],
    "benchmark model": ["--resolution", "--batch-size"],
}


@pytest.mark.parametrize("number", [10**30, -1])
@pytest.mark.parametrize(("command", "option"), [(command, name) for command in OPTIONS for name in OPTIONS[command]])
def test_a_number_beyond_all_bounds_is_one_line(tmp_path, monkeypatch, capsys, command, option, number):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), option, str(number)])
    lines = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert len(lines) == 1
    assert option in lines[0]
    assert not list(tmp_path.iterdir())
