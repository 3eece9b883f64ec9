"""Each figure is checked for what it draws: data, labels, limits, number of lines."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from report_samples import make_run

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.report import figures, style
from factformer.report.figures import TrendLine
from factformer.report.planes import color_limits, components


def images(figure):
    """Pictures of the panels, row by row, without the colour bars."""
    return [axes.images[0] for axes in figure.axes if axes.images]


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_comparison_shows_prediction_truth_and_difference_over_time(plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    figure = figures.comparison(rollout, part, frames=[0, 3, 7], frame_dt=0.125, grid=plane_run.problem.grid)
    panels = images(figure)
    assert len(panels) == 9
    for column, frame in enumerate((0, 3, 7)):
        predicted, exact = rollout.prediction[frame, ..., 0].T, rollout.truth[frame, ..., 0].T
        np.testing.assert_allclose(panels[column].get_array(), predicted)
        np.testing.assert_allclose(panels[3 + column].get_array(), exact)
        np.testing.assert_allclose(panels[6 + column].get_array(), predicted - exact, atol=1e-6)
    titles = [axes.get_title() for axes in figure.axes[:3]]
    assert titles == ["t = 0.125", "t = 0.5", "t = 1"]
    assert [figure.axes[i].get_ylabel() for i in (0, 3, 6)] == ["Prediction", "Truth", "Difference"]
    assert panels[0].get_extent() == pytest.approx([0, 2 * np.pi, 0, 2 * np.pi])
    assert panels[0].origin == "lower"


def test_prediction_and_truth_share_limits_about_zero_and_the_difference_has_its_own(plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    panels = images(figures.comparison(rollout, part, frames=[0, 7]))
    limits = color_limits(rollout.truth)
    assert {panel.get_clim() for panel in panels[:4]} == {(limits.low, limits.high)}
    assert limits.low == -limits.high
    low, high = panels[4].get_clim()
    assert low == -high
    assert high < limits.high
    assert {panel.get_cmap().name for panel in panels[:4]} == {"factformer_field"}
    assert {panel.get_cmap().name for panel in panels[4:]} == {"factformer_difference"}


def test_fields_of_one_sign_take_a_sequential_map(plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    shifted = type(rollout)(np.abs(rollout.truth) + 1, np.abs(rollout.prediction) + 1)
    assert images(figures.comparison(shifted, part, frames=[0]))[0].get_cmap().name == "viridis"


def test_comparison_of_a_grid_of_one_axis_draws_lines():
    run = make_run(shape=(32,), num_frames=4, num_samples=1)
    rollout = run.rollouts[0]
    figure = figures.comparison(
        rollout, components(run.fields)[0], frames=[0, 3], frame_dt=0.125, grid=run.problem.grid
    )
    upper, lower = figure.axes[1], figure.axes[3]
    np.testing.assert_allclose(upper.lines[0].get_ydata(), rollout.truth[3, :, 0])
    np.testing.assert_allclose(upper.lines[1].get_ydata(), rollout.prediction[3, :, 0])
    np.testing.assert_allclose(upper.lines[0].get_xdata(), run.problem.grid.axis(0).numpy())
    np.testing.assert_allclose(lower.lines[0].get_ydata(), rollout.prediction[3, :, 0] - rollout.truth[3, :, 0])
    assert upper.get_ylim() == figure.axes[0].get_ylim()


def test_uneven_points_fill_cells_of_their_own_size():
    run = make_run(shape=(4, 5), num_frames=1, num_samples=1)
    grid = Grid.from_axes([[0, 1, 3, 7], np.linspace(0, 2, 5)])
    figure = figures.comparison(run.rollouts[0], components(run.fields)[0], grid=grid)
    meshes = [axes.collections[0] for axes in figure.axes[:3]]
    np.testing.assert_allclose(meshes[1].get_array(), run.rollouts[0].truth[0, ..., 0].T)
    corners = meshes[0].get_coordinates()
    np.testing.assert_allclose(corners[0, :, 0], [0, 0.5, 2, 5, 7])
    np.testing.assert_allclose(corners[:, 0, 1], np.linspace(0, 2, 6))
    assert figure.axes[0].get_aspect() == 1
    assert not any(axes.images for axes in figure.axes[:3])


@pytest.mark.parametrize("extent", [(8.0, 1.0), (1.0, 8.0)])
def test_long_boxes_keep_a_readable_size(extent):
    run = make_run(shape=(8, 8), num_frames=2, num_samples=1)
    figure = figures.comparison(run.rollouts[0], components(run.fields)[0], grid=Grid((8, 8), extent, True))
    width, height = figure.get_size_inches()
    assert max(width, height) < 18
    figure.draw_without_rendering()
    names = [axes.yaxis.label.get_window_extent() for axes in figure.axes[::2][:3]]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(names))


@pytest.mark.parametrize("extent", [(1e6, 1.0), (1.0, 1e6)])
def test_very_long_boxes_are_not_drawn_to_scale_and_say_so(extent):
    run = make_run(shape=(8, 8), num_frames=2, num_samples=1)

    def draw(*extent):
        figure = figures.comparison(run.rollouts[0], components(run.fields)[0], grid=Grid((8, 8), extent, True))
        figure.draw_without_rendering()
        return figure, figure.axes[0].get_window_extent()

    figure, panel = draw(*extent)
    assert max(figure.get_size_inches()) < 18
    assert max(panel.width / panel.height, panel.height / panel.width) == pytest.approx(6, rel=0.01)
    assert figure.axes[4].get_xlabel() == "x₁ →, x₂ ↑\nnot to scale"
    figure, panel = draw(2.0, 1.0)
    assert panel.width / panel.height == pytest.approx(2, rel=0.01)
    assert figure.axes[4].get_xlabel() == "x₁ →, x₂ ↑"


def test_middle_slices_cut_each_axis_at_its_middle(box_run):
    rollout, part = box_run.rollouts[0], components(box_run.fields)[2]
    figure = figures.middle_slices(rollout, part, frame=1, grid=box_run.problem.grid)
    panels, values = images(figure), rollout.truth[1, ..., 2]
    assert len(panels) == 9
    for column, picture in enumerate((values[6], values[:, 5], values[:, :, 4])):
        np.testing.assert_allclose(panels[3 + column].get_array(), picture.T)
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "x₂–x₃\nx₁ = 3.14",
        "x₁–x₃\nx₂ = 3.14",
        "x₁–x₂\nx₃ = 3.14",
    ]
    assert "velocity₂" in {axes.get_ylabel() for axes in figure.axes}


def test_four_axes_show_six_planes():
    run = make_run(shape=(4, 5, 6, 7), num_frames=1, num_samples=1)
    panels = images(figures.middle_slices(run.rollouts[0], components(run.fields)[0]))
    assert len(panels) == 18
    np.testing.assert_allclose(panels[6].get_array(), run.rollouts[0].truth[0, 2, 2, :, :, 0].T)


def test_error_trend_gives_models_colours_and_protocols_dashes():
    lines = [
        TrendLine("factformer", [0.1, 0.2, 0.3], standard_errors=[0.01, 0.01, 0.02]),
        TrendLine("factformer", [0.2, 0.4, 0.8], "autoregressive"),
        TrendLine("fno", [0.3, 0.3, 0.4]),
    ]
    figure = figures.error_trend(lines, field="vorticity", frame_dt=0.5, persistence=[0.5, 0.9, 1.2])
    (axes,) = figure.axes
    drawn = axes.lines
    assert [line.get_linestyle() for line in drawn] == ["-", "--", "-", ":"]
    assert drawn[0].get_color() == drawn[1].get_color() != drawn[2].get_color()
    np.testing.assert_allclose(drawn[1].get_xydata(), [[0.5, 0.2], [1.0, 0.4], [1.5, 0.8]])
    np.testing.assert_allclose(drawn[3].get_ydata(), [0.5, 0.9, 1.2])
    assert labels(axes) == ["factformer LM", "factformer AR", "fno LM", "persistence"]
    assert axes.get_ylim()[0] == 0
    assert "vorticity" in axes.get_ylabel()
    assert axes.get_xlabel().startswith("time")
    assert len(axes.collections) == 1


def test_error_trend_without_a_frame_interval_counts_frames():
    (axes,) = figures.error_trend([TrendLine("a", [0.1, 0.2])], field="u").axes
    assert axes.get_xlabel() == "frame"
    assert labels(axes) == ["a"]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2])


def test_spectra_are_logarithmic_without_the_mean():
    figure = figures.spectra([0, 1, 2, 4], {"a": [9, 1, 0.5, 0.1]}, [9, 1, 0.6, 0.3], field="velocity")
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 1], [2, 0.6], [4, 0.3]])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [1, 0.5, 0.1])
    assert labels(axes) == ["truth", "a"]


def test_resolution_study_leaves_gaps_out_and_ticks_what_was_run():
    figure = figures.resolution_study(
        [43, 85, 141], {"a": [0.01, 0.011, 0.012], "b": [0.02, None, 0.05]}, field="solution"
    )
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[43, 0.02], [141, 0.05]])
    assert axes.get_xticks().tolist() == [43, 85, 141]
    with pytest.raises(UserError, match="2 errors for 3 resolutions"):
        figures.resolution_study([1, 2, 3], {"a": [0.1, 0.2]}, field="solution")


def test_ablation_bars_single_out_the_choice():
    figure = figures.ablation_bars({"2": 0.3, "8": 0.15}, setting="heads", chosen="8", standard_errors={"8": 0.02})
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [0.3, 0.15]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [
        style.series_color(0),
        style.series_color(1),
    ]
    assert axes.get_xlabel() == "heads"
    assert {text.get_text() for text in axes.texts} == {"0.300", "0.150"}
    with pytest.raises(UserError, match="not among"):
        figures.ablation_bars({"2": 0.3}, setting="heads", chosen="9")


def test_cost_marks_what_ran_out_of_memory():
    figure = figures.cost_curves(
        [32, 64, 128],
        {"factorized": [1, 2, 4], "linear": [3, 9, None]},
        size_label="points per axis",
        cost_label="seconds",
    )
    (axes,) = figure.axes
    factorized, linear, lost = axes.lines
    np.testing.assert_allclose(factorized.get_ydata(), [1, 2, 4])
    np.testing.assert_allclose(linear.get_xdata(), [32, 64])
    assert lost.get_xdata().tolist() == [128]
    assert lost.get_ydata()[0] > 9
    assert labels(axes)[-1] == "linear: out of memory"
    with pytest.raises(UserError, match="out of memory"):
        figures.cost_curves([1], {"a": [None]}, size_label="n", cost_label="s")


def test_energy_curves_mark_where_the_threshold_is_reached():
    energy = np.cumsum([0.5, 0.3, 0.15, 0.05])
    (axes,) = figures.energy_curves({"layer 1": energy}, total=8).axes
    curve, mark = axes.lines[:2]
    np.testing.assert_allclose(curve.get_xdata(), [1 / 8, 2 / 8, 3 / 8, 4 / 8])
    assert mark.get_xdata()[0] == pytest.approx(3 / 8)
    assert labels(axes) == ["layer 1: 37.5 %"]


def test_kernels_are_scaled_to_one_about_zero():
    kernels = {f"k{i}": np.eye(4) * (i - 3) for i in range(6) if i != 3}
    figure = figures.kernel_maps(kernels)
    panels = images(figure)[:5]
    assert {panel.get_clim() for panel in panels} == {(-1, 1)}
    np.testing.assert_allclose(panels[0].get_array(), -np.eye(4))
    np.testing.assert_allclose(panels[-1].get_array(), np.eye(4))
    assert [axes.get_title() for axes in figure.axes[:5]] == list(kernels)
    dark = figures.kernel_maps(kernels, dark=True)
    assert images(dark)[0].get_cmap().name == "factformer_field_dark"
    assert sum(dark.get_facecolor()[:3]) < 0.5
    with pytest.raises(UserError, match="no kernels"):
        figures.kernel_maps({})


def test_figures_keep_out_of_pyplot():
    figures.error_trend([TrendLine("a", [0.1, 0.2])], field="u")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_bodies_are_grey(plane_run):
    rollout, part = plane_run.rollouts[0], components(plane_run.fields)[0]
    body = np.zeros(rollout.truth.shape[1:-1], dtype=bool)
    body[2:5, 3:9] = True
    cut = [np.where(body[..., None], np.float32(np.nan), values) for values in (rollout.truth, rollout.prediction)]
    for panel in images(figures.comparison(type(rollout)(*cut), part, frames=[0])):
        drawn = panel.to_rgba(panel.get_array())
        grey = (np.abs(drawn[..., :3] - 128 / 255) < 0.01).all(-1)
        assert grey[body.T].all()
        assert to_hex(panel.get_cmap().get_bad()) == style.BODY
    line = figures.spectra([0, 1, 2], {"model": [1, 1, 1]}, [1, 1, 1], field="u", masked=True)
    assert "zero outside the domain" in line.axes[0].get_ylabel()
