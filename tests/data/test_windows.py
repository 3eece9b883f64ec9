from __future__ import annotations

import pytest
import torch

from factformer.data import Windows
from factformer.errors import UserError


@pytest.mark.parametrize(("num_frames", "length", "stride"), [(10, 4, 1), (10, 4, 3), (7, 7, 2), (5, 1, 1)])
def test_windows_are_all_that_fit_and_no_other(num_frames: int, length: int, stride: int) -> None:
    windows = Windows(3, num_frames, length, stride)
    expected = [(n, start) for n in range(3) for start in range(0, num_frames - length + 1, stride)]
    assert [windows[index] for index in range(len(windows))] == expected


def test_order_visits_every_window_once_and_depends_on_seed_and_epoch_alone() -> None:
    windows = Windows(5, 20, 6)
    order = windows.order(seed=1, epoch=2)
    assert sorted(order.tolist()) == list(range(len(windows)))
    torch.manual_seed(123)
    assert torch.equal(order, Windows(5, 20, 6).order(1, 2))
    assert not torch.equal(order, windows.order(1, 3))
    assert not torch.equal(order, windows.order(2, 2))


def test_outside_and_impossible_windows_are_errors() -> None:
    windows = Windows(2, 5, 5)
    with pytest.raises(IndexError):
        windows[2]
    with pytest.raises(UserError, match="window of 6 frames does not fit"):
        Windows(2, 5, 6)
    with pytest.raises(UserError, match="empty"):
        Windows(0, 5, 5)
