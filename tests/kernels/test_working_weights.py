"""Weights in the working type: made together, never stale."""

import gc
import weakref

import torch
from torch import nn

from factformer.kernels._triton.weights import working, working_weights


def test_casts_follow_the_weights_and_those_of_a_call_before_stay():
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7))
    first, bias, second = module[0].weight, module[0].bias, module[1].weight
    kept = []
    for _ in range(3):
        with working_weights(module, torch.bfloat16):
            casts = [working(w, torch.bfloat16) for w in (first, bias, second)]
            assert working(second, torch.bfloat16) is casts[2]
        for cast, weight in zip(casts, (first, bias, second), strict=True):
            assert torch.equal(cast, weight.detach().bfloat16())
            assert not cast.requires_grad
        kept.append((casts, [w.detach().bfloat16() for w in (first, bias, second)]))
        with torch.no_grad():
            first.mul_(2.0)
            bias.add_(1.0)
    for casts, values in kept:
        assert all(torch.equal(a, b) for a, b in zip(casts, values, strict=True))
    ((casts, _), *_) = kept[1:]
    assert casts[0].untyped_storage().data_ptr() == casts[2].untyped_storage().data_ptr(), "cast in one launch"
    assert all(cast.storage_offset() % 64 == 0 for cast in casts)


def test_weights_that_were_replaced_are_cast_too():
    module = nn.Linear(4, 4)
    for _ in range(2):
        with working_weights(module, torch.bfloat16):
            working(module.weight, torch.bfloat16)
    module.weight = nn.Parameter(torch.ones(4, 4))
    with working_weights(module, torch.bfloat16):
        assert torch.equal(working(module.weight, torch.bfloat16), torch.ones(4, 4).bfloat16())


def test_outside_of_a_call_and_in_the_same_type_nothing_is_kept():
    weight = nn.Parameter(torch.randn(3))
    assert torch.equal(working(weight, torch.bfloat16), weight.detach().bfloat16())
    with working_weights(nn.Linear(1, 1), torch.float32):
        assert working(weight, torch.float32).data_ptr() == weight.data_ptr()


def test_weights_that_moved_are_forgotten_where_they_were():
    module = nn.Linear(3, 2)
    with working_weights(module, torch.bfloat16):
        working(module.weight, torch.bfloat16)
    before = module.weight.data
    alive = weakref.ref(before.untyped_storage())
    module.weight.data = before.clone() + 1
    with working_weights(module, torch.bfloat16):
        cast = working(module.weight, torch.bfloat16)
    assert torch.equal(cast, module.weight.detach().bfloat16())
    del before, cast
    gc.collect()
    assert alive() is None
