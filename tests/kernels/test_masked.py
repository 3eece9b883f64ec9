"""The fused kernels on domains that do not fill their grid, under Triton's interpreter, against the plain layers."""

import pytest
import test_attention as attention
import torch
from test_attention import layer_for, relative
from test_local import branch_for
from test_march_decode import surrogate_for

import triton_interpreter  # noqa: F401
from factformer import Grid, engine

GRIDS = attention.GRIDS | {"rectangle": Grid((5, 19), (1.0, 2.5), (True, False))}


def mask_for(grid, batch=2, seed=3):
    """Another domain for each sample; in the first one a whole line across the first axis lies outside."""
    mask = torch.rand(batch, *grid.shape, generator=torch.Generator().manual_seed(seed)) > 0.35
    mask[0, 1] = False
    mask.flatten(1)[:, -1] = True
    return mask


def run(layer, call, mask, mode, dtype=torch.float32, seed=1):
    """Result inside the domain and gradients of a random functional of what lies there."""
    engine.attach(layer, mode)
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(*mask.shape, layer_width(layer), generator=generator).to(dtype).requires_grad_()
    layer.to(dtype)
    result = call(layer, u, mask)
    probe = torch.randn(result.shape, generator=generator).to(dtype)
    shape = (*mask.shape[:1], *[1] * (result.ndim - mask.ndim - 1), *mask.shape[1:], 1)
    probe = probe * mask.view(shape)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    grads = torch.autograd.grad((result * probe).sum(), [u, *parameters], allow_unused=True)
    return result * mask.view(shape), grads


def layer_width(layer):
    return layer.dim if hasattr(layer, "dim") else len(layer.norm.weight)


def assert_agree(layer, call, mask, tolerance=2e-5):
    fused, fused_grads = run(layer, call, mask, "force")
    plain, plain_grads = run(layer, call, mask, "off", torch.float64)
    assert relative(fused, plain) < tolerance
    names = ["u", *(name for name, p in layer.named_parameters() if p.requires_grad)]
    for name, a, b in zip(names, fused_grads, plain_grads, strict=True):
        assert relative(a, b) < tolerance, name


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("head_dim", [16, 6], ids=["TMA", "pointers"])
def test_attention(name, head_dim):
    grid = GRIDS[name]
    layer = layer_for(grid, head_dim=head_dim)
    encoding = torch.randn(*grid.shape, layer.dim, generator=torch.Generator().manual_seed(5))
    assert_agree(layer, lambda part, u, mask: part.add_to(u, encoding.to(u.dtype), grid, mask), mask_for(grid))


@pytest.mark.parametrize("options", [{"softmax": True}, {"kernel_dim": 2}], ids=["softmax", "low rank"])
def test_attention_with_kernels_that_plain_operations_make(options):
    grid = GRIDS["rectangle"]
    assert_agree(layer_for(grid, **options), lambda part, u, mask: part.add_to(u, None, grid, mask), mask_for(grid))


def test_nothing_outside_has_an_influence():
    grid = GRIDS["periodic"]
    layer, mask = layer_for(grid), mask_for(grid)
    engine.attach(layer, "force")
    u = torch.randn(*mask.shape, layer.dim)
    other = torch.where(mask.unsqueeze(-1), u, torch.full_like(u, float("nan")))
    with torch.no_grad():
        results = [layer.add_to(field, None, grid, mask)[mask] for field in (u, other)]
    assert torch.equal(*results)


def test_a_mask_that_is_written_to_is_another_one():
    grid = GRIDS["periodic"]
    layer, mask = layer_for(grid), mask_for(grid)
    u = torch.randn(*mask.shape, layer.dim)
    with torch.no_grad():
        engine.attach(layer, "force")
        layer.add_to(u, None, grid, mask)
        mask.copy_(mask_for(grid, seed=4))
        fused = layer.add_to(u, None, grid, mask)
        engine.detach(layer)
        assert relative(fused, layer.add_to(u, None, grid, mask)) < 1e-5


LOCAL = {
    "line": (("periodic",), 5, 1),
    "bounded line": (("zero",), 3, 2),
    "rectangle": (("periodic", "zero"), 3, 2),
    "periodic": (("periodic", "periodic"), 5, 1),
    "box": (("periodic", "zero", "periodic"), 3, 1),
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_branch(name):
    grid = GRIDS[name]
    branch = branch_for(*LOCAL[name])
    assert_agree(branch, lambda part, u, mask: part.add_to(u, grid, mask), mask_for(grid))


@pytest.mark.parametrize(("name", "dim"), [("line", 16), ("rectangle", 16), ("rectangle", 64), ("box", 16)])
def test_marching_and_decoder(name, dim):
    grid = GRIDS[name]
    surrogate = surrogate_for(grid, dim)
    parts = torch.nn.ModuleList([surrogate.marching, surrogate.decoder])
    parts.dim = dim
    assert_agree(parts, lambda both, u, mask: both[0].decoded(u, 2, both[1], grid, None, mask), mask_for(grid), 5e-5)


def test_a_domain_in_a_corner_of_many_tiles(monkeypatch):
    """Whole tiles, and whole blocks of tiles, lie outside."""
    from factformer.kernels.march_decode import marching_forward

    monkeypatch.setattr(marching_forward, "MERGED_TILES", 16)
    grid = Grid(3000, 1.0, True)
    surrogate = surrogate_for(grid)
    mask = torch.zeros(2, 3000, dtype=torch.bool)
    mask[0, 2900:], mask[1, :40] = True, True
    parts = torch.nn.ModuleList([surrogate.marching, surrogate.decoder])
    parts.dim = 16
    assert_agree(parts, lambda both, u, mask: both[0].decoded(u, 1, both[1], grid, None, mask), mask, 5e-5)
