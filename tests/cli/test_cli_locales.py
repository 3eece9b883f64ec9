"""Commands under other locales, a reader that goes away, long messages, and names that are not just letters."""

import json
import os
import subprocess
import sys

import pytest

from factformer.cli import main

ALL_COMMANDS = """
import sys
from factformer.cli import main

folder = sys.argv[1]
small = ["model.dim=8", "model.depth=1", "model.heads=1", "training.updates=2", "training.batch_size=1"]
small += ["data.resolution=null"]
for words in (
    ["list"],
    ["generate", "darcy_flow", "--out", folder + "/data", "--preset", "tiny", "--trajectories", "2"],
    ["train", "darcy", "--data", folder + "/data", "--out", folder + "/run", *(w for s in small for w in ("--set", s))],
    ["evaluate", folder + "/run", "--samples", "1"],
    ["report", folder + "/run", "--out", folder + "/report"],
):
    try:
        main(words)
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)
"""


def start(script, *arguments, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "LANG", "PYTHONIOENCODING")}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**kept, **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["C", "cp1252"],
)
def test_commands_run_under_another_locale(tmp_path, locale):
    folder = tmp_path / "runs"
    done = start(ALL_COMMANDS, folder, **locale)
    assert done.returncode == 0, done.stderr.decode("latin-1")[-2000:]
    assert b"Traceback" not in done.stderr
    assert "×" in (folder / "report" / "report.html").read_text(encoding="utf-8")
    json.loads((folder / "run" / "evaluation.json").read_text(encoding="utf-8"))


def test_a_reader_that_goes_away_is_no_failure():
    script = "from factformer.cli import main; main(['list'])"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) in (0, 1)


def test_messages_are_one_line_that_a_terminal_does_not_obey(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "\x1b[2Jno\nwhere" + "x" * 5000])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert len(error) < 520
    assert error.count("\n") == 1
    assert "\x1b" not in error


def test_debug_keeps_the_traceback(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "nowhere", "--debug"])
    assert stop.value.code == 2
    assert "Traceback" in capsys.readouterr().err
