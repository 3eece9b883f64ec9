"""Runs of other frame intervals and lengths are compared at the physical times that all of them predict."""

import json
from dataclasses import replace

import numpy as np
import pytest
from report_samples import VORTICITY, evaluation_of, make_run, vortices

from factformer.errors import UserError
from factformer.report import figures
from factformer.report.common_times import Times, common_times
from factformer.report.html import write_report
from factformer.report.samples import Rollout


@pytest.mark.parametrize(
    ("rollouts", "interval", "count"),
    [
        ([(1 / 16, 16), (1 / 8, 8)], 1 / 8, 8),
        ([(1 / 16, 16), (3 / 16, 5)], 3 / 16, 5),
        ([(0.2, 8), (0.3, 5)], 0.6, 2),
        ([(0.1, 16), (0.1, 4)], 0.1, 4),
        ([(1.0, 1), (1.0, 1)], 1.0, 1),
        ([(0.75, 30), (2.25, 10), (1.5, 15)], 4.5, 5),
    ],
)
def test_the_times_that_all_runs_predict(rollouts, interval, count):
    times = common_times(rollouts)
    assert (times.interval, times.count) == (pytest.approx(interval), count)
    for step, number in rollouts:
        reached = np.arange(1, number + 1) * step
        assert times.of(reached, step) == pytest.approx(interval * np.arange(1, count + 1))


def test_runs_may_have_no_time_in_common():
    assert common_times([(1.0, 3), (4.0, 2)]) is None
    assert common_times([(2.0, 2), (3.0, 1)]) is None
    assert common_times([(1.0, 5), (np.pi, 1)]) is None


def test_a_mean_over_an_error_that_is_not_known_is_not_known():
    assert Times(2.0, 2).mean([9.0, 1.0, 9.0, 3.0], 1.0) == 2.0
    assert Times(2.0, 2).mean([9.0, 1.0, 9.0, None], 1.0) is None
    assert Times(2.0, 1).mean([9.0, 1.0, 9.0, None], 1.0) == 1.0


def every_second(run):
    """The run of a surrogate that predicts every second frame, and those exactly as ``run`` does."""
    rollouts = [Rollout(one.truth[1::2], one.prediction[1::2]) for one in run.rollouts]
    shape = run.rollouts[0].truth.shape[1:-1]
    known = [vortices(shape, 1, seed=seed) for seed in range(len(rollouts))]
    frames = ([getattr(one, name) for one in rollouts] for name in ("truth", "prediction"))
    evaluation = replace(evaluation_of(known, *frames, VORTICITY, 0.25), stride=2)
    problem = replace(run.problem, frame_dt=0.25, horizon=4)
    return replace(run, name="strided", evaluation=evaluation, rollouts=rollouts, problem=problem)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_run_that_predicts_the_same_at_every_second_frame_has_the_same_errors(tmp_path, order):
    fine = make_run("fine", shape=(16, 12), num_frames=8)
    pair = [fine, every_second(fine)]
    write_report(tmp_path, title="two", runs=[pair[index] for index in order], compared=True)
    rows = {row["model"]: row for row in json.loads((tmp_path / "comparison.json").read_text())["rows"]}
    own = fine.evaluation.fields["vorticity"].relative_l2_per_frame
    for key in ("vorticity.relative_l2", "vorticity.relative_l2_final"):
        assert rows["fine"][key] == pytest.approx(rows["strided"][key])
    assert rows["fine"]["vorticity.relative_l2"] == pytest.approx(np.mean(own[1::2])) != pytest.approx(np.mean(own))
    assert rows["fine"]["seconds_per_sequence"] is not None
    assert "4 times that all of them predict, 0.25 apart and up to 1 " in (tmp_path / "comparison.md").read_text()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert data["timing"]["dt"] == 0.25 and data["player"]["frames"] == 4 and data["player"]["comparable"]
    assert data["player"]["errors"][0] == data["player"]["errors"][1]
    lines = {line["name"].split(" (")[0]: line for line in data["trend"]["vorticity"]}
    assert lines["fine"]["x"] == pytest.approx(np.arange(1, 9) * 0.125) and lines["fine"]["y"] == pytest.approx(own)
    assert lines["strided"]["x"] == pytest.approx(np.arange(1, 5) * 0.25)
    assert len(lines["persistence"]["x"]) == len(lines["persistence"]["y"])


def test_a_longer_roll_out_is_compared_up_to_the_end_of_the_shorter_one(tmp_path):
    long = make_run("long", shape=(16, 12), num_frames=8)
    short = make_run("short", shape=(16, 12), num_frames=3)
    write_report(tmp_path, title="two", runs=[long, short])
    rows = {row["model"]: row for row in json.loads((tmp_path / "comparison.json").read_text())["rows"]}
    assert rows["long"]["vorticity.relative_l2"] == pytest.approx(rows["short"]["vorticity.relative_l2"])
    assert rows["long"]["seconds_per_sequence"] is None, "it is the time of eight frames"
    assert rows["short"]["seconds_per_sequence"] is not None


def test_runs_without_a_time_in_common_are_refused_in_one_line(tmp_path):
    fine = make_run("fine", shape=(16, 12), num_frames=1)
    with pytest.raises(UserError, match=r"0\.125, 0\.25 apart, predict no time in common"):
        write_report(tmp_path, title="two", runs=[fine, every_second(make_run("b", shape=(16, 12)))])


def test_lines_of_other_intervals_are_drawn_at_their_own_times():
    lines = [
        figures.TrendLine("fine", [0.1, 0.2, 0.3, 0.4], frame_dt=0.5),
        figures.TrendLine("strided", [0.2, 0.4], frame_dt=1.0),
    ]
    (axes,) = figures.error_trend(lines, field="u", frame_dt=0.5, persistence=[1.0, 1.0, 1.0, 1.0]).axes
    fine, strided, floor = (line.get_xdata() for line in axes.lines)
    assert list(fine) == list(floor) == [0.5, 1.0, 1.5, 2.0] and list(strided) == [1.0, 2.0]
