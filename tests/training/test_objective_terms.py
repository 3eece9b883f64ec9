"""Options of the loss and of the windows: the H1 term, noise on the context, several calls with gradients."""

import pytest
import torch
from small_waves import tiny_experiment, wave_data

from factformer import Field, Grid, Problem, metrics
from factformer.batch import Window
from factformer.data.dataset import ArrayDataset
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.protocols import build_protocol
from factformer.training.experiment.assembly import new_surrogate
from factformer.training.feed.noise import ContextNoise
from factformer.training.loop.objective import Objective
from factformer.training.loop.train import train


@pytest.fixture
def parts():
    dataset, _ = wave_data()
    experiment = tiny_experiment()
    protocol = build_protocol(experiment.protocol, dataset.problem)
    torch.manual_seed(0)
    return new_surrogate(experiment, dataset, protocol), protocol, dataset


def test_differences_count_small_scales():
    x = torch.arange(16) * (2 * torch.pi / 16)
    target = torch.sin(x)[None, None, :, None]
    coarse, fine = 0.1 * torch.sin(x), 0.1 * torch.sin(6 * x)
    errors = [metrics.relative_h1(target + error[None, None, :, None], target).item() for error in (coarse, fine)]
    assert errors[0] == pytest.approx(0.1, rel=1e-4)
    assert errors[1] > 0.4
    assert metrics.relative_h1(target, target).item() < 1e-6


def test_the_h1_term_is_added_and_not_reported_as_the_error(parts):
    surrogate, protocol, dataset = parts
    frames = dataset.read([0, 1], slice(0, protocol.window_length))
    plan = {"marching_steps": 2, "pushforward": 0}
    plain, terms = Objective(surrogate, protocol)(Window(frames), plan)
    loss, same = Objective(surrogate, protocol, 0.5)(Window(frames), plan)
    prediction, target = protocol.predict(surrogate, Window(frames), plan)
    rough = metrics.relative_h1(prediction, target).mean()
    assert torch.allclose(loss, plain + 0.5 * rough)
    assert torch.equal(terms["u"], same["u"])
    assert list(terms) == ["u"] and list(same) == ["u", "gradient_loss"]
    assert torch.allclose(same["gradient_loss"], rough) and not same["gradient_loss"].requires_grad


def test_noise_is_on_the_context_alone_and_a_function_of_the_update(parts):
    _, _, dataset = parts
    noise = ContextNoise(0.1, 3, dataset.normalizer(), seed=5)
    window = Window(dataset.read([0, 1], slice(0, 7)))
    noisy = noise(window, 4, range(2)).frames
    assert torch.equal(noisy[:, 3:], window.frames[:, 3:])
    spread = (noisy[:, :3] - window.frames[:, :3]).std() / dataset.normalizer().state_std
    assert spread.item() == pytest.approx(0.1, rel=0.15)
    assert torch.equal(noisy, noise(window, 4, range(2)).frames)
    assert not torch.equal(noisy, noise(window, 5, range(2)).frames)
    halves = [noise(Window(window.frames[i : i + 1]), 4, range(i, i + 1)).frames for i in range(2)]
    assert torch.equal(noisy, torch.cat(halves))  # two devices with half of the batch each


def test_noise_reaches_the_means_along_every_axis(parts):
    noise = ContextNoise(1.0, 2, parts[2].normalizer(), seed=5)
    drawn = noise(Window(torch.zeros(50, 2, 64, 64, 1)), 1, range(50)).frames / noise.deviation
    assert drawn.std().item() == pytest.approx(1, rel=0.05)
    columns, rows, whole = drawn.mean(2), drawn.mean(3), drawn.mean((2, 3))
    for lines in (columns, rows):  # white noise would leave 1/8: two of the four parts survive one mean, one both
        assert lines.std().item() == pytest.approx(0.5**0.5, rel=0.1)
    assert whole.std().item() == pytest.approx(0.5, rel=0.2)


def test_late_calls_carry_gradients_through_all_of_them():
    experiment = tiny_experiment().override(["protocol.calls=2", "protocol.calls_from=0.5", "protocol.pushforward=0"])
    dataset, _ = wave_data()
    protocol = build_protocol(experiment.protocol, dataset.problem)
    assert protocol.window_length == 3 + 2 * 2
    assert (protocol.plan(1, 0.4)["calls"], protocol.plan(1, 0.6)["calls"]) == (1, 2)
    surrogate = new_surrogate(experiment, dataset, protocol)
    window = Window(dataset.read([0], slice(0, 7)))
    prediction, target = protocol.predict(surrogate, window, {"marching_steps": 2, "pushforward": 0, "calls": 2})
    assert prediction.shape == target.shape == (1, 4, 8, 8, 1)
    assert torch.equal(target, window.frames[:, 3:])
    first = torch.autograd.grad(prediction[:, 3].sum(), surrogate.parameters(), retain_graph=True, allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in first)


def test_all_of_it_together_trains(tmp_path):
    experiment = tiny_experiment(noise=0.01, gradient_loss=0.2, updates=20).override(["protocol.calls=2"])
    outcome = train(experiment, *wave_data(), folder=tmp_path / "run")
    assert outcome.finished
    last = outcome.last
    assert last["loss"] == pytest.approx(last["u"] + 0.2 * last["gradient_loss"], rel=1e-5)


def test_training_begins_on_every_other_point(parts, monkeypatch):
    experiment = tiny_experiment().override(["protocol.coarse=2", "protocol.coarse_until=0.5"])
    dataset, _ = wave_data()
    protocol = build_protocol(experiment.protocol, dataset.problem)
    assert [protocol.whole_plan(1, progress)["coarse"] for progress in (0.0, 0.49, 0.5, 1.0)] == [2, 2, 1, 1]
    objective = Objective(new_surrogate(experiment, dataset, protocol), protocol)
    frames = dataset.read([0, 1], slice(0, protocol.window_length))
    plan = protocol.whole_plan(1, 0.0)
    coarse, _ = objective(Window(frames), plan)
    kept, _ = objective(Window(frames[:, :, ::2, ::2].contiguous()), {**plan, "coarse": 1})
    assert torch.equal(coarse, kept)
    with pytest.raises(UserError, match="no grid of the same box"):
        build_protocol(experiment.override(["protocol.coarse=3"]).protocol, dataset.problem)


def test_a_far_offset_of_a_field_changes_nothing_in_the_loss():
    """A temperature around 300 beside a velocity around 0 counts as one around 0 does."""
    torch.manual_seed(0)
    problem = Problem("room", Grid((8, 8), 1.0, True), (Field("heat"), Field("flow", 2)), num_context_frames=2)
    frames = torch.randn(3, 6, 8, 8, 3, dtype=torch.float64)
    losses = []
    for offset in (0.0, 300.0):
        moved = frames + torch.tensor([offset, 0.0, 0.0])
        normalizer = ArrayDataset(moved, problem).normalizer()
        deviation, known = normalizer.loss_scale()
        assert (known is None) == (offset == 0)
        losses.append(
            metrics.grouped_relative_l2(
                moved[:, :4] + 0.1 * frames[:, 2:], moved[:, :4], problem.state_slices, deviation, known
            )
        )
    for name, value in losses[0].items():
        assert float(losses[1][name]) == pytest.approx(float(value), rel=0.05)


def test_weak_windows_are_held_back_in_training_and_told_as_they_are():
    """A field that decays to a twentieth of its deviation: its error is its own, its pull is that of a tenth."""
    problem = Problem("decay", Grid((8, 8), 1.0, True), (Field("u"),), num_context_frames=1)
    normalizer = Normalizer(
        context_mean=[0.0], context_std=[1.0], state_mean=[0.0], state_std=[1.0], increment_std=[1.0]
    )
    weak = 0.05 * torch.ones(1, 4, 8, 8, 1)
    assert metrics.relative_l2(1.1 * weak, weak, normalizer.deviation).item() == pytest.approx(0.1, rel=1e-5)
    deviation, offset = normalizer.loss_scale()
    pull = metrics.grouped_relative_l2(1.1 * weak, weak, problem.state_slices, deviation, offset)["u"]
    assert float(pull) == pytest.approx(0.05, rel=1e-5)
