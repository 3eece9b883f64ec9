"""The fused attention kernels under Triton's interpreter, held against the plain path."""

import math

import pytest
import torch

import triton_interpreter  # noqa: F401
from factformer import Grid, engine
from factformer.nn import FactorizedAttention, KernelOptions

GRIDS = {
    "line": Grid(21, 2 * math.pi, True),
    "bounded line": Grid(7, 1.0, False),
    "rectangle": Grid((5, 70), (1.0, 2.5), (True, False)),
    "periodic": Grid((17, 6), 2 * math.pi, True),
    "box": Grid((3, 4, 5), (1.0, 2.0, 0.5), (True, False, True)),
    "hyperbox": Grid((2, 3, 2, 4), 1.0, True),
}


def layer_for(grid, dim=12, heads=2, head_dim=6, kernel_dim=4, seed=0, **options):
    torch.manual_seed(seed)
    layer = FactorizedAttention(grid.num_axes, dim, heads, head_dim, kernel_dim, KernelOptions(**options))
    with torch.no_grad():  # kernels of order one, so that no tolerance hides a mistake
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
    return layer


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).detach())


def run(layer, grid, mode, batch=2, encoded=True, dtype=torch.float32, seed=1):
    """Result and gradients of a random functional of ``add_to``."""
    engine.attach(layer, mode)
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(batch, *grid.shape, layer.dim, generator=generator)
    encoding = torch.randn(*grid.shape, layer.dim, generator=generator) if encoded else None
    probe = torch.randn(batch, *grid.shape, layer.dim, generator=generator)
    inputs = [t.to(dtype).requires_grad_() for t in (u, encoding) if t is not None]
    result = layer.to(dtype).add_to(inputs[0], inputs[1] if encoded else None, grid)
    grads = torch.autograd.grad((result * probe.to(dtype)).sum(), [*inputs, *layer.parameters()])
    return result, grads


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("encoded", [True, False], ids=["encoded", "bare"])
def test_agrees_with_the_plain_path_forward_and_backward(name, encoded):
    grid = GRIDS[name]
    batch = 1 if name == "box" else 3 if name == "line" else 2
    # Heads of 64 bytes are moved by TMA, those of 24 are not.
    layer = layer_for(grid, head_dim=16 if encoded else 6, kernel_dim=4 if name != "hyperbox" else 2)
    fused, fused_grads = run(layer, grid, "force", batch, encoded)
    plain, plain_grads = run(layer, grid, "off", batch, encoded, dtype=torch.float64)
    assert relative(fused, plain) < 1e-5
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 2e-5


@pytest.mark.parametrize("size", [2.0**-20, 2.0**25])
def test_the_size_of_queries_and_keys_does_not_matter(size):
    grid = GRIDS["box"]
    layer = layer_for(grid, kernel_dim=8)
    before, grads_before = run(layer, grid, "force")
    with torch.no_grad():
        for kernel in layer.axes():
            kernel.to_queries.weight.mul_(size)
            kernel.to_keys.weight.mul_(size)
    after, grads = run(layer, grid, "force")
    assert relative(after, before) < 1e-6
    named = dict(zip(["u", "encoding", *(name for name, _ in layer.named_parameters())], grads, strict=True))
    for (name, a), b in zip(named.items(), grads_before, strict=True):
        factor = size if "to_queries" in name or "to_keys" in name else 1.0
        assert relative(a * factor, b) < 1e-5, name


def test_softmax_kernels_take_the_same_way():
    grid = Grid((6, 5), (2 * math.pi, 1.0), (True, False))
    layer = layer_for(grid, softmax=True)
    fused, fused_grads = run(layer, grid, "force")
    plain, plain_grads = run(layer, grid, "off", dtype=torch.float64)
    assert relative(fused, plain) < 1e-5
    assert max(relative(a, b) for a, b in zip(fused_grads, plain_grads, strict=True)) < 2e-5


def test_a_bad_value_spreads_over_its_sample_and_no_further():
    grid = GRIDS["periodic"]
    layer = layer_for(grid)
    engine.attach(layer, "force")
    u = torch.randn(2, *grid.shape, layer.dim)
    u[1, 3, 2, 0] = float("nan")
    with torch.no_grad():
        result = layer.add_to(u, None, grid)
    assert bool(result[0].isfinite().all())
    assert bool(result[1].isnan().all())


@pytest.mark.parametrize(("size_out", "size_in", "axis"), [(200, 130, 0), (64, 150, 1), (17, 20, 1), (300, 40, 0)])
def test_contractions_of_every_tiling(size_out, size_in, axis):
    from factformer.kernels.attention import contraction

    generator = torch.Generator().manual_seed(0)
    shape = (2, size_in, 3) if axis == 0 else (2, 3, size_in)
    values = torch.randn(*shape, 2, 12, generator=generator) + 2.0
    kernel = torch.randn(2, 2, size_out, size_in, generator=generator)
    weights = torch.rand(*((size_out, 3) if axis == 0 else (3, size_out)), generator=generator)
    equation = "bhij,bjohc->biohc" if axis == 0 else "bhij,bojhc->boihc"
    expected = torch.einsum(equation, kernel.double(), values.double())
    for w in (None, weights):
        result, statistics = contraction.contract_into(kernel, values, axis, weights=w, eps=0.0)
        share = (torch.ones_like(weights) if w is None else w).double()[:, :, None, None] / 12
        share = share / (share.sum() * 12)
        mean = (expected * share).sum((1, 2, 4), keepdim=True)
        spread = ((expected - mean).square() * share).sum((1, 2, 4))
        assert relative(result, expected) < 1e-6
        assert relative(statistics[..., 0], mean.flatten(1)) < 1e-4
        assert relative(statistics[..., 1], spread.rsqrt()) < 1e-5


@pytest.mark.parametrize(("size_out", "size_in", "axis"), [(140, 130, 0), (20, 35, 1), (9, 16, 0)])
@pytest.mark.parametrize("channels", [12, 6])
def test_gradients_of_a_contraction(size_out, size_in, axis, channels):
    from factformer.kernels.attention.contraction import contraction

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(*((2, size_in, 3) if axis == 0 else (2, 3, size_in)), 2, channels, generator=generator)
    kernel = torch.randn(2, 2, size_out, size_in, generator=generator)
    values.requires_grad_()
    kernel.requires_grad_()
    result, _ = contraction(kernel, values, axis)
    probe = torch.randn(result.shape, generator=generator)
    got = torch.autograd.grad((result * probe).sum(), [kernel, values])
    equation = "bhij,bjohc->biohc" if axis == 0 else "bhij,bojhc->boihc"
    exact = torch.einsum(equation, kernel.double(), values.double())
    expected = torch.autograd.grad((exact * probe).sum(), [kernel, values])
    assert max(relative(a, b) for a, b in zip(got, expected, strict=True)) < 1e-6


def test_long_axes_are_walked_in_pieces(monkeypatch):
    from factformer.kernels.attention import contraction

    monkeypatch.setattr(contraction, "WHOLE_LIMIT", 16)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1, 3, 70, 2, 4, generator=generator)
    kernel = torch.randn(1, 2, 20, 70, generator=generator)
    result, statistics = contraction.contract_into(kernel, values, 1, eps=1e-6)
    expected = torch.einsum("bhij,bojhc->boihc", kernel.double(), values.double())
    assert relative(result, expected) < 1e-6
    mean, scale = statistics.unbind(-1)
    assert relative(mean, expected.mean((1, 2, 4))) < 1e-4
    assert relative(scale, (expected.var((1, 2, 4), correction=0) + 1e-6).rsqrt()) < 1e-5


def test_statistics_survive_a_large_mean():
    from factformer.kernels.attention import contraction

    values = torch.randn(1, 12, 40, 1, 5, generator=torch.Generator().manual_seed(0)) + 1000.0
    identity = torch.eye(40).expand(1, 1, 40, 40)
    _, statistics = contraction.contract_into(identity, values, 1, eps=0.0)
    assert float(statistics[0, 0, 1]) == pytest.approx(1 / float(values.double().std(correction=0)), rel=1e-4)


def test_row_products():
    from factformer.kernels._triton.products import gram

    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 150, 5, generator=generator), torch.randn(2, 150, 130, generator=generator) + 3.0
    assert relative(gram(left, right), left.double().transpose(1, 2) @ right.double()) < 1e-6


def test_parts_are_added_in_float32_and_rounded_once():
    from factformer.kernels._triton.sums import add_parts

    parts = torch.randn(7, 3, 130, generator=torch.Generator().manual_seed(0))
    assert relative(add_parts(parts, torch.float32), parts.double().sum(0)) < 1e-6
    assert add_parts(parts, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize(("work", "others", "resident"), [(256, 160, 1), (1, 7, 2), (4096, 24, 3), (5, 1000, 1)])
def test_shares_cover_the_work_in_few_rounds(work, others, resident):
    from factformer.kernels._triton.arithmetic import MULTIPROCESSORS
    from factformer.kernels._triton.geometry import shares

    share = shares(work, others, resident, 2)
    rounds = math.ceil(others * math.ceil(work / share) / (MULTIPROCESSORS * resident))
    whole = math.ceil(others / (MULTIPROCESSORS * resident)) * (work + 2)
    assert 1 <= share <= work
    assert rounds * (share + 2) <= whole


def test_an_unknown_mode_is_named(monkeypatch):
    from factformer.errors import UserError

    monkeypatch.setenv("FACTFORMER_FUSED", "of")
    layer, u = layer_for(GRIDS["line"]), torch.randn(1, 21, 12)
    layer.add_to(u, None, GRIDS["line"])  # a layer by itself asks no environment
    engine.attach(layer)
    with pytest.raises(UserError, match="FACTFORMER_FUSED must be"):
        layer.add_to(u, None, GRIDS["line"])
    with pytest.raises(UserError, match="mode must be one of"):
        engine.attach(layer, "of")
