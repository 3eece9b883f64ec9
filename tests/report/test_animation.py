from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from report_samples import make_run

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field
from factformer.report.animation import draw_frames, write_animation
from factformer.report.planes import components
from factformer.report.style import sequential_map


@pytest.fixture(scope="module")
def gif(plane_run, tmp_path_factory):
    rollout = plane_run.rollouts[0]
    path = tmp_path_factory.mktemp("gif") / "a" / "roll.gif"
    return write_animation(
        path,
        rollout.prediction[:4],
        rollout.truth[:4],
        component=components(plane_run.fields)[0],
        frame_dt=0.125,
        frames_per_second=10,
        grid=plane_run.problem.grid,
    )


def test_gif_has_every_frame_at_its_pace_and_repeats(gif):
    with Image.open(gif) as picture:
        assert picture.n_frames == 4
        assert picture.info["duration"] == 100
        assert picture.info["loop"] == 0
        frames = []
        for i in range(4):
            picture.seek(i)
            frames.append(np.asarray(picture.convert("RGB")).astype(int))
    assert np.abs(frames[0] - frames[3]).max() > 50
    assert (frames[0][0, 0] == 255).all()
    assert [p.name for p in gif.parent.iterdir()] == ["roll.gif"]


def test_gif_keeps_the_colours_of_the_map(gif, plane_run):
    rollout = plane_run.rollouts[0]
    drawn = draw_frames(
        rollout.prediction[:4],
        rollout.truth[:4],
        component=components(plane_run.fields)[0],
        frame_dt=0.125,
        grid=plane_run.problem.grid,
    )
    with Image.open(gif) as picture:
        picture.seek(2)
        stored = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(stored - np.asarray(drawn[2]).astype(int)).mean() < 2


def test_truth_makes_three_panels_and_prediction_alone_one(plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    alone = draw_frames(rollout.prediction[:1], component=part)
    three = draw_frames(rollout.prediction[:1], rollout.truth[:1], component=part)
    assert three[0].width > 2 * alone[0].width
    assert len(alone) == 1


@pytest.mark.parametrize("shape", [(16,), (8, 6, 10)])
def test_any_number_of_axes(shape):
    run = make_run(shape=shape, num_frames=2, num_samples=1)
    first, second = draw_frames(run.rollouts[0].prediction, component=components(run.fields)[0])
    assert np.abs(np.asarray(first).astype(int) - np.asarray(second)).max() > 20


def test_a_line_lies_over_its_coordinates():
    run = make_run(shape=(20,), num_frames=1, num_samples=1)
    options = {"component": components(run.fields)[0]}
    numbered, same, short = (
        np.asarray(draw_frames(run.rollouts[0].prediction, grid=grid, **options)[0])
        for grid in (None, Grid((20,), 19.0, False), Grid((20,), 4.0, False))
    )
    np.testing.assert_array_equal(numbered, same)
    assert not np.array_equal(numbered, short)


def test_uneven_points_take_the_room_they_stand_for():
    """The right half of the points stands for less than a fifth of the box."""
    field = np.repeat(np.where(np.arange(10) < 5, 1.0, 2.0), 4).reshape(1, 10, 4, 1)
    far = [0, 20, 40, 60, 80, 100, 102, 105, 107, 110]
    shares = {}
    for name, axis in (("even", np.linspace(0, 110, 10)), ("uneven", far)):
        grid = Grid.from_axes([axis, np.linspace(0, 50, 4)])
        (picture,) = draw_frames(field, component=components([Field("u")])[0], grid=grid)
        row = np.asarray(picture).astype(int)[picture.height // 2]
        low, high = (np.rint(255 * np.array(sequential_map()(end)[:3])) for end in (0.0, 1.0))
        counts = [(np.abs(row - color).max(-1) < 12).sum() for color in (low, high)]
        shares[name] = counts[1] / sum(counts)
    assert shares["even"] == pytest.approx(0.5, abs=0.03)
    assert shares["uneven"] == pytest.approx(20 / 110, abs=0.03)


@pytest.mark.parametrize("extent", [(1e6, 1.0), (1.0, 1e6)])
def test_very_long_boxes_are_drawn_in_a_bounded_size(extent):
    run = make_run(shape=(8, 8), num_frames=1, num_samples=1)
    options = {"component": components(run.fields)[0], "grid": Grid((8, 8), extent, True)}
    (picture,) = draw_frames(run.rollouts[0].prediction, run.rollouts[0].truth, **options)
    assert max(picture.size) < 5000


def test_refusals(tmp_path, plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    with pytest.raises(UserError, match=r"ending \.gif"):
        write_animation(tmp_path / "a.mp4", rollout.prediction, component=part)
    (tmp_path / "a.gif").write_text("mine")
    with pytest.raises(UserError, match="--overwrite"):
        write_animation(tmp_path / "a.gif", rollout.prediction, component=part)
    assert (tmp_path / "a.gif").read_text() == "mine"
    with pytest.raises(UserError, match="differ in shape"):
        write_animation(tmp_path / "b.gif", rollout.prediction, rollout.truth[:2], component=part)
