import pytest
import torch

from factformer.training.loop.optimizer.schedule import learning_rate_factor


def test_one_cycle_follows_the_reference_schedule():
    """torch's OneCycleLR counts its phases in whole updates, so both agree up to one update's change."""
    total, peak = 1000, 3e-4
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=total, pct_start=0.2)
    worst = 0.0
    for update in range(total):
        ours = peak * learning_rate_factor("one_cycle", update / total, warmup=0.2, initial=1 / 25, final=1 / 25e4)
        worst = max(worst, abs(ours - reference.get_last_lr()[0]) / peak)
        optimizer.step()
        reference.step()
    assert worst < 0.01


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "constant"])
def test_ends_and_peak(schedule):
    factor = lambda p: learning_rate_factor(schedule, p, warmup=0.2, initial=0.04, final=0.01)  # noqa: E731
    assert factor(0.0) == pytest.approx(0.04)
    assert factor(0.2) == pytest.approx(1.0)
    assert factor(1.0) == pytest.approx(1.0 if schedule == "constant" else 0.01)
    assert factor(1.5) == factor(1.0)


def test_cosine_without_warmup_starts_at_the_peak():
    values = [learning_rate_factor("cosine", p / 10, warmup=0, initial=0.04, final=0.01) for p in range(11)]
    assert values[0] == 1.0
    assert values[5] == pytest.approx((1 + 0.01) / 2)
    assert values == sorted(values, reverse=True)
