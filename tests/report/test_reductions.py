"""What an equation declares beside its fields is drawn: fields on fewer axes and numbers over time."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from report_samples import make_run

from factformer import simulate
from factformer.pdes import find_pde
from factformer.problem import Field
from factformer.report.figures import numbers_over_time
from factformer.report.reductions import plane_of, reduced, reduction_figures
from factformer.report.samples import Rollout
from lab.equations.landau_damping import perturbed


def plasma(shape):
    """A run on a phase space: the truth is a damped wave, the prediction the same wave a little weaker."""
    pde = find_pde("vlasov_poisson")
    run = make_run(shape=(4,) * len(shape), num_frames=5, num_samples=1, fields=(Field("distribution"),))
    truth, rest = (simulate(pde, perturbed(shape, amplitude=a), 5, 0.5)[0].numpy() for a in (0.1, 0.0))
    rollout = Rollout(truth, rest + 0.9 * (truth - rest))
    problem = pde.problem(shape)
    return dataclasses.replace(run, rollouts=(rollout,), problem=problem, grid=problem.grid)


@pytest.mark.parametrize("shape", [(8, 32), (8, 4, 32, 16)])
def test_the_figures_of_a_phase_space(shape):
    run = plasma(shape)
    half = len(shape) // 2
    found = reduction_figures([run], ["ours"])
    headings = ["Density", "Departure from the mean over positions", "Energy of the electric field"]
    assert list(found) == headings
    density, departure, energy = found.values()
    # The density of the start is 1 + a cos(kx), of which the prediction has nine tenths.
    x = run.grid.axis(0).numpy()
    exact = (1 + 0.1 * np.cos(0.5 * x), 1 + 0.09 * np.cos(0.5 * x))
    if half == 1:
        truth, prediction = (density.axes[0].lines[i].get_ydata() for i in (0, 1))
        assert density.axes[5].get_xlabel() == "x₁"
    else:
        pictures = [axes.images[0].get_array() for axes in density.axes if axes.images]
        prediction, truth = pictures[0][0], pictures[5][0]
        assert pictures[0].shape == (4, 8)
    np.testing.assert_allclose(truth, exact[0], atol=1e-5)
    np.testing.assert_allclose(prediction, exact[1], atol=1e-5)
    # The departure lies in the plane of the first position and its velocity.
    picture = departure.axes[0].images[0]
    assert picture.get_array().shape == (shape[half], shape[0])
    assert picture.get_extent() == pytest.approx([0, 4 * math.pi, 0, 12])
    # E = -(a/k) sin(kx): half of its mean square is (a/k)²/4.
    line, predicted = energy.axes[0].lines
    assert line.get_ydata()[0] == pytest.approx((0.1 / 0.5) ** 2 / 4, rel=1e-4)
    np.testing.assert_allclose(predicted.get_ydata(), 0.81 * line.get_ydata(), rtol=1e-3)
    assert line.get_xdata()[0] == run.evaluation.frame_dt


def test_reductions_keep_the_shape_of_what_they_depend_on():
    run = plasma((8, 4, 32, 16))
    found = reduced(find_pde("vlasov_poisson"), run.rollouts[0], run.grid)
    assert [rollout.truth.shape for rollout in found.values()] == [
        (5, 8, 4, 1, 1, 1),
        (5, 8, 1, 32, 1, 1),
        (5, 1, 1, 1, 1, 1),
    ]
    assert [plane and plane.axes for plane in map(plane_of, found.values())] == [(0, 1), (0, 2), None]


def test_most_equations_declare_none(plane_run):
    assert reduction_figures([plane_run], ["ours"]) == {}
    unknown = dataclasses.replace(plane_run, problem=dataclasses.replace(plane_run.problem, name="of my own"))
    assert reduction_figures([unknown], ["ours"]) == {}


def test_a_number_over_decades_is_drawn_on_a_logarithmic_axis():
    falling = np.array([1.0, 0.1, 0.01])
    axes = numbers_over_time({"a": falling, "b": 2 * falling}, falling, label="energy").axes[0]
    assert (axes.get_yscale(), axes.get_xlabel(), len(axes.lines)) == ("log", "frame", 3)
    assert numbers_over_time({}, 1 + falling, label="energy", frame_dt=0.5).axes[0].get_yscale() == "linear"


def test_the_energy_is_that_of_the_truth_of_the_solver():
    """The same number as the check of the damping rate measures, in both numbers of axes."""
    from lab.equations.landau_damping import field_energy

    for shape in ((16, 32), (8, 6, 16, 16)):
        frames = simulate("vlasov_poisson", perturbed(shape, amplitude=0.1), 3, 0.5)
        grid = find_pde("vlasov_poisson").grid(shape)
        found = find_pde("vlasov_poisson").reductions(frames, grid)["energy of the electric field"].flatten(1)
        torch.testing.assert_close(found[0], 0.5 * field_energy(frames[0, ..., 0]))
