"""The fused modulation under Triton's interpreter, held against the plain layer."""

import sys
from pathlib import Path

import pytest
import torch

from factformer import engine
from factformer.nn.conditions import EMBEDDING_DIM, Modulation

sys.path.insert(0, str(Path(__file__).parents[1]))
import triton_interpreter  # noqa: F401

SHAPES = {"line": (700,), "plane": (9, 11), "box": (3, 4, 5)}


def case(shape, dim, dtype=torch.float32, batch=3):
    torch.manual_seed(0)
    layer = Modulation(dim)
    torch.nn.init.normal_(layer.weight, std=0.3)
    z = torch.randn(batch, *shape, dim).to(dtype).requires_grad_()
    return layer, z, torch.randn(batch, EMBEDDING_DIM, requires_grad=True), torch.randn(batch, *shape, dim).to(dtype)


def result_and_gradients(layer, z, embedding, probe, mode):
    engine.attach(layer, mode)
    result = layer(z, embedding)
    return result, torch.autograd.grad((result * probe).sum(), [z, embedding, layer.weight])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dim", [16, 24, 128])
def test_agrees_with_the_plain_layer(name, dim):
    arguments = case(SHAPES[name], dim)
    fused, grads = result_and_gradients(*arguments, "force")
    plain, expected = result_and_gradients(*arguments, "off")
    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)
    for found, wanted in zip(grads, expected, strict=True):
        assert (found - wanted).norm() < 2e-6 * wanted.norm()


def test_it_is_neutral_at_the_start():
    _, z, embedding, _ = case((9, 11), 24)
    layer = Modulation(24)
    engine.attach(layer, "force")
    assert torch.equal(layer(z, embedding), z)


def test_samples_in_another_order_in_memory():
    layer, z, embedding, probe = case((9, 11), 24)
    turned = z.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    fused, _ = result_and_gradients(layer, turned, embedding, probe, "force")
    engine.attach(layer, "off")
    torch.testing.assert_close(fused, layer(z, embedding), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_format_is_that_of_the_field(dtype):
    layer, z, embedding, _ = case((9, 11), 24, dtype)
    engine.attach(layer, "force")
    assert layer(z, embedding).dtype == dtype
