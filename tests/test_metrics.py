"""Metrics against their formulas."""

import math

import pytest
import torch

from factformer import Grid, metrics


def frames(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_relative_l2_is_the_joint_window():
    p, t = frames(3, 4, 5, 6, 2), frames(3, 4, 5, 6, 2, seed=1)
    for b in range(3):
        joint = math.sqrt(float(((p[b] - t[b]) ** 2).sum())) / math.sqrt(float((t[b] ** 2).sum()))
        assert float(metrics.relative_l2(p, t)[b]) == pytest.approx(joint)
        one = math.sqrt(float(((p[b, 2] - t[b, 2]) ** 2).sum())) / math.sqrt(float((t[b, 2] ** 2).sum()))
        assert float(metrics.relative_l2_per_frame(p, t)[b, 2]) == pytest.approx(one)


def test_loss_is_the_sum_of_group_means():
    p, t = frames(3, 4, 5, 3), frames(3, 4, 5, 3, seed=1)
    slices = {"a": slice(0, 1), "b": slice(1, 3)}
    expected = sum(float(metrics.relative_l2(p[..., s], t[..., s]).mean()) for s in slices.values())
    assert float(metrics.loss(p, t, slices)) == pytest.approx(expected)
    assert float(metrics.loss(t, t, slices)) == 0.0


def test_half_precision_sums_in_single():
    t = torch.full((1, 1, 300, 300, 1), 3.0, dtype=torch.bfloat16)
    assert float(metrics.relative_l2(t * 2, t)[0]) == pytest.approx(1.0, rel=1e-3)


def test_vrmse_is_one_for_the_spatial_mean():
    t = frames(2, 3, 16, 16, 2)
    mean = t.mean((2, 3), keepdim=True).expand_as(t)
    assert torch.allclose(metrics.vrmse(mean, t), torch.ones(2, 3, dtype=torch.float64), atol=1e-5)


def test_correlation_time_is_the_first_crossing():
    t = frames(2, 5, 32, 1)
    p = t.clone()
    p[0, 3:] = frames(2, 32, 1, seed=9)
    assert metrics.correlation_time(p, t, frame_dt=0.5).tolist() == [1.5, 2.5]


def test_energy_spectrum_of_a_single_wave_and_parseval():
    x = Grid((32, 32), 2 * math.pi, True).mesh()
    u = (3 * torch.sin(5 * x[..., 0]))[None, ..., None]
    spectrum = metrics.energy_spectrum(u)[0]
    assert float(spectrum[5]) == pytest.approx(0.5 * 9 / 2)
    assert float(spectrum.sum() - spectrum[5]) == pytest.approx(0.0, abs=1e-12)
    line = frames(1, 64, 2)
    assert float(metrics.energy_spectrum(line).sum()) == pytest.approx(0.5 * float((line**2).sum(-1).mean()))


def test_spectrum_error_counts_decades():
    t = frames(1, 2, 16, 16, 1)
    assert torch.allclose(metrics.spectrum_error(t * 10, t), torch.full((1, 2), 2.0, dtype=torch.float64))


def test_standard_error():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert metrics.standard_error(values) == pytest.approx(float(values.std()) / 2)
    assert math.isnan(metrics.standard_error(values[:1]))


def test_a_prediction_that_is_not_finite_correlates_with_nothing():
    t = frames(1, 10, 8, 8, 1)
    p = t.clone()
    p[:, 3:] = math.inf
    assert metrics.correlation_time(p, t, 0.1).item() == pytest.approx(0.3)
    assert metrics.correlation_time(torch.full_like(t, math.nan), t, 0.1).item() == 0


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e6, 1e14])
def test_metrics_do_not_depend_on_the_units(unit):
    t = frames(2, 3, 8, 8, 2).float()
    p = t + 0.3 * frames(2, 3, 8, 8, 2, seed=5).float()
    deviation = torch.ones(2)
    for metric in (metrics.vrmse, metrics.correlation, metrics.relative_l2, metrics.relative_l2_per_frame):
        torch.testing.assert_close(metric(p * unit, t * unit), metric(p, t), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        metrics.relative_l2(p * unit, t * unit, deviation * unit), metrics.relative_l2(p, t), rtol=1e-4, atol=0
    )


def test_errors_are_relative_to_the_deviation_where_the_truth_is_zero():
    zero, p = torch.zeros(1, 2, 8, 8, 1), torch.full((1, 2, 8, 8, 1), 0.5)
    deviation = torch.tensor([2.0])
    assert metrics.relative_l2(p, zero, deviation).item() == pytest.approx(0.5 / (metrics.LEAST * 2))
    assert metrics.relative_l2_per_frame(p, zero, deviation)[0, 1].item() == pytest.approx(0.5 / (metrics.LEAST * 2))
    assert metrics.relative_h1(p, zero, deviation).item() < 1e-3
    t = frames(1, 2, 8, 8, 1)
    assert torch.equal(metrics.relative_l2(p.double(), t, deviation), metrics.relative_l2(p.double(), t))


def test_a_frame_that_is_the_same_everywhere_spoils_nothing():
    t = frames(2, 3, 16, 16, 2).float()
    t[0, 1], t[..., 1] = 0.0, 3.0
    deviation = torch.tensor([1.0, 0.5])
    for metric in (metrics.spectrum_error, lambda p, t: metrics.vrmse(p, t, deviation)):
        assert torch.equal(metric(t, t), torch.zeros(2, 3))
        assert metric(t + 0.1 * frames(2, 3, 16, 16, 2, seed=4).float(), t).isfinite().all()
    expected = (0.1 / metrics.LEAST + 0.1 / (metrics.LEAST * 0.5)) / 2
    assert metrics.vrmse(t + 0.1, t, deviation)[0, 1].item() == pytest.approx(expected, rel=1e-2)


def test_correlation_is_that_of_the_channels_that_vary():
    t = frames(2, 3, 16, 16, 2).float()
    t[..., 1] = 3.0
    torch.testing.assert_close(metrics.correlation(t, t), torch.ones(2, 3))
    assert metrics.correlation_time(t, t, 0.1).tolist() == pytest.approx([0.3, 0.3])
    other = frames(2, 3, 16, 16, 2, seed=4).float()
    torch.testing.assert_close(metrics.correlation(other, t), metrics.correlation(other[..., :1], t[..., :1]))
    still = torch.full((1, 2, 8, 8, 1), 3.0)
    assert metrics.correlation(still, still).tolist() == [[1.0, 1.0]]
    assert metrics.correlation_time(still * math.nan, still, 0.1).item() == 0


@pytest.mark.parametrize("size", [16, 4096])
def test_differences_are_relative_on_any_grid(size):
    wave = torch.sin(Grid((size,), 2 * math.pi, True).axis(0))[None, None, :, None]
    assert metrics.relative_h1(0 * wave, wave, wave.std()[None]).item() == pytest.approx(1.0, rel=1e-3)
