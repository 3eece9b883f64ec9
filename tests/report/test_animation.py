from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from report_samples import make_run

from factformer.errors import UserError
from factformer.report.animation import draw_frames, write_animation
from factformer.report.planes import components


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
