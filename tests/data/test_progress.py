from __future__ import annotations

import pytest

from factformer.data import generate
from factformer.data.generate import progress as progress_module
from factformer.data.generate.progress import ProgressBar, duration


def test_lines_say_how_much_and_how_long(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: float(next(clock)))
    with ProgressBar("data", 100, initial=40) as bar:
        bar.advance(20)
        assert bar.seconds_left() > 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("data: 60/100 frames (60 %), ")
    assert lines[0].endswith("left")
    assert "done in" in lines[-1]


def test_work_done_before_says_nothing_about_speed(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    bar = ProgressBar("data", 100, initial=40, enabled=False)
    clock[0] = 10.0
    bar.advance(20)  # 2 a second, 40 to go
    assert bar.seconds_left() == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (float("inf"), "unknown time")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_generation_tells_only_when_asked(decay, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(decay, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    generate(decay, tmp_path / "told", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "decay train: 49/49 frames (100 %)",
        "decay valid: 14/14 frames (100 %)",
        "decay test: 21/21 frames (100 %)",
    ]
