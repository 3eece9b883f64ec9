"""The bytes of the player give back the fields within the resolution they promise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from report_samples import make_run

from factformer import metrics
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.report.clips import LEVELS, NOT_FINITE, pack, player_data, quantize, unpack
from factformer.report.runs import ReportRun, Rollout


def decode(levels, bounds):
    return bounds[0] + (bounds[1] - bounds[0]) * levels / LEVELS


def clip(data, kind, owner, sample, field, plane):
    place = data["planes"][plane]
    shape = (data["frames"], place["height"], place["width"])
    return decode(unpack(data[kind][owner][sample][field][plane], shape), data["fields"][field][f"{kind}_range"])


def test_pack_round_trips():
    levels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(unpack(pack(levels), levels.shape), levels)


def test_quantize_marks_what_is_not_finite():
    levels = quantize(np.array([0.0, 0.5, 1.0, 2.0, np.nan, np.inf]), 0, 1)
    assert levels.tolist() == [0, 127, 254, 254, NOT_FINITE, NOT_FINITE]


def test_player_holds_truth_and_prediction_of_every_component_and_plane(box_run):
    data = player_data([box_run], ["a"], 10**7)
    assert [f["label"] for f in data["fields"]] == ["pressure", "velocity₁", "velocity₂", "velocity₃"]
    assert [(p["width"], p["height"]) for p in data["planes"]] == [(10, 8), (12, 8), (12, 10)]
    rollout = box_run.rollouts[0]
    for field in range(4):
        truth = clip(data, "truth", 0, 0, field, 1)  # x1-x3 at the middle of x2
        difference = clip(data, "difference", 0, 0, field, 1)
        exact = np.swapaxes(rollout.truth[:, :, 5, :, field], 1, 2)
        predicted = np.swapaxes(rollout.prediction[:, :, 5, :, field], 1, 2)
        low, high = data["fields"][field]["truth_range"]
        bound = data["fields"][field]["difference_range"][1]
        assert np.abs(truth - exact).max() <= 0.5001 * (high - low) / LEVELS
        assert np.abs(difference - (predicted - exact)).max() <= 1.001 * bound / LEVELS
        assert bound < 0.5 * (high - low)  # the difference keeps a finer scale than the field


def test_errors_of_the_player_are_the_metric(plane_run):
    import torch

    data = player_data([plane_run], ["a"], 10**7)
    for sample, rollout in enumerate(plane_run.rollouts):
        expected = metrics.relative_l2_per_frame(
            torch.from_numpy(rollout.prediction)[None], torch.from_numpy(rollout.truth)[None]
        )
        np.testing.assert_allclose(data["errors"][0][sample]["vorticity"], expected[0].numpy(), rtol=1e-5)


def test_runs_on_the_same_windows_share_their_truth(plane_run, rival_run):
    data = player_data([plane_run, rival_run], ["a", "b"], 10**7)
    assert data["truth_of_run"] == [0, 0]
    assert list(data["truth"]) == [0]
    assert len(data["difference"]) == 2


def test_less_detail_when_room_is_short(box_run):
    run = make_run(shape=(48, 48), num_frames=4, num_samples=4)

    def size(data):
        return len(json.dumps([list(data["truth"].values()), data["difference"]]))

    full = player_data([run], ["a"], 10**8)
    fewer = player_data([run], ["a"], int(0.6 * size(full)))
    coarser = player_data([run], ["a"], size(full) // 5)
    assert [(d["samples"], d["stride"]) for d in (full, fewer, coarser)] == [(4, 1), (2, 1), (2, 2)]
    assert coarser["planes"][0]["width"] == 24
    with pytest.raises(UserError, match="fewer frames"):
        player_data([run], ["a"], 100)


def test_planes_say_where_their_points_lie():
    run = make_run(shape=(6, 4), num_frames=1, num_samples=1)

    def plane(grid):
        return player_data([replace(run, problem=None, grid=grid)], ["a"], 10**7)["planes"][0]

    cells = plane(Grid((6, 4), (3.0, 1.0), False, "cells"))
    assert cells["extent"] == [[0, 3], [0, 1]]
    assert cells["aspect"] == pytest.approx(1 / 3)
    tall = plane(Grid((6, 4), (1.0, 1e6), True))
    assert tall["aspect"] == 6
    assert cells["to_scale"] and not tall["to_scale"]
    assert cells["points"][1] == [0.125, 0.375, 0.625, 0.875]
    assert cells["even"] == [True, True]
    uneven = plane(Grid.from_axes([[0, 1, 2, 3, 4, 9], [-1, 0, 1, 2]]))
    assert uneven["extent"] == [[0, 9], [-1, 2]]
    assert uneven["points"] == [[0, 1, 2, 3, 4, 9], [-1, 0, 1, 2]]
    assert uneven["even"] == [False, True]
    unknown = plane(None)
    assert (unknown["extent"], unknown["points"][1]) == ([[0, 6], [0, 4]], [0, 1, 2, 3])


def test_blown_up_prediction_neither_hides_small_errors_nor_fails(plane_run):
    rollout = plane_run.rollouts[0]
    wild = rollout.prediction.copy()
    wild[-2], wild[-1] = 1e8, np.nan
    run = ReportRun("wild", plane_run.evaluation, [Rollout(rollout.truth, wild)], plane_run.fields)
    data = player_data([run], ["wild"], 10**7)
    json.dumps(data["errors"], allow_nan=False)
    assert data["errors"][0][0]["vorticity"][-1] is None
    difference = clip(data, "difference", 0, 0, 0, 0)[0]
    exact = np.swapaxes(wild[0, ..., 0] - rollout.truth[0, ..., 0], 0, 1)
    low, high = data["fields"][0]["truth_range"]
    assert np.abs(difference - exact).max() < 0.01 * (high - low)
    levels = unpack(data["difference"][0][0][0][0], (8, 32, 32))
    assert (levels[-1] == NOT_FINITE).all()
    assert (levels[-2] == LEVELS).all()


def test_mixed_problems_are_refused(plane_run, box_run):
    with pytest.raises(UserError, match="one report for each problem"):
        player_data([plane_run, box_run], ["a", "b"], 10**7)


def test_no_rollouts_no_player(plane_run):
    assert player_data([ReportRun("a", plane_run.evaluation)], ["a"], 10**6) is None


def with_body(run: ReportRun) -> ReportRun:
    """The run with a body, where there are no values."""
    body = np.zeros(run.rollouts[0].truth.shape[1:-1], dtype=bool)
    body[4:9, 6:10] = True
    cut = [
        Rollout(*(np.where(body[..., None], np.float32(np.nan), values) for values in (one.truth, one.prediction)))
        for one in run.rollouts
    ]
    return replace(run, rollouts=cut)


def test_bodies_have_no_values_and_do_not_count(plane_run):
    import torch

    run = with_body(plane_run)
    data = player_data([run], ["a"], 10**7)
    place = data["planes"][0]
    shape = (data["frames"], place["height"], place["width"])
    for kind in ("truth", "difference"):
        levels = unpack(data[kind][0][0][0][0], shape)
        assert np.array_equal(levels == NOT_FINITE, np.isnan(np.swapaxes(run.rollouts[0].truth[..., 0], 1, 2)))
    inside = torch.from_numpy(~np.isnan(run.rollouts[0].truth[0, ..., 0]))[None]
    whole = plane_run.rollouts[0]
    expected = metrics.relative_l2_per_frame(
        torch.from_numpy(whole.prediction)[None], torch.from_numpy(whole.truth)[None], mask=inside
    )
    np.testing.assert_allclose(data["errors"][0][0]["vorticity"], expected[0].numpy(), rtol=1e-5)
