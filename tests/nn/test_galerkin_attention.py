"""Galerkin attention against its quadrature formula."""

import pytest
import torch

from factformer.grid import Grid
from factformer.nn.attention.galerkin import GalerkinAttention


@pytest.mark.parametrize(
    "grid",
    [Grid(9, 1.0, True), Grid((4, 5), 2.0, False), Grid.from_axes([[0.0, 0.1, 1.0], [0.0, 0.2, 0.3, 1.0]])],
    ids=["periodic", "nodes", "stretched"],
)
def test_it_is_the_quadrature_of_the_projection(grid):
    """``z_j(x_i) = Σ_l q_l(x_i) Σ_s w_s k_l(x_s) v_j(x_s)``, k and v normalised, the coordinates appended."""
    torch.manual_seed(0)
    heads, width = 2, 3
    layer = GalerkinAttention(grid.num_axes, 5, heads, width).double()
    with torch.no_grad():
        for norm in (layer.key_norm, layer.value_norm):
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
    u = torch.randn(2, *grid.shape, 5, dtype=torch.float64)
    x = u.flatten(1, -2)
    weights = torch.ones((), dtype=torch.float64)
    for m in range(grid.num_axes):
        weights = (weights[..., None] * grid.weights(m)).flatten()
    positions = (grid.mesh() / torch.tensor(grid.extent)).flatten(0, -2).expand(2, -1, -1)
    outputs = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        q, k, v = (linear(x)[..., part] for linear in (layer.to_queries, layer.to_keys, layer.to_values))
        k, v = layer.key_norm(k), layer.value_norm(v)
        q, k, v = (torch.cat([positions, columns], dim=-1) for columns in (q, k, v))
        integrals = torch.einsum("s,bsl,bsj->blj", weights, k, v)
        outputs.append(torch.einsum("bil,blj->bij", q, integrals))
    expected = layer.to_output(torch.cat(outputs, dim=-1)).unflatten(1, grid.shape)
    torch.testing.assert_close(layer(u, grid), expected, rtol=1e-10, atol=1e-10)


def test_the_projection_converges_with_the_quadrature():
    """The same smooth function on finer node grids: second order, as the trapezoid rule."""
    torch.manual_seed(0)
    layer = GalerkinAttention(1, 8, 2, 4).double()
    lift = torch.randn(1, 8, dtype=torch.float64)

    def answer(size: int) -> torch.Tensor:
        grid = Grid(size, 1.0, False)
        u = torch.sin(3 * grid.axis(0) + 0.2)[None, :, None] * lift
        return layer(u, grid)[:, :: (size - 1) // 8]

    errors = [(answer(size) - answer(513)).abs().max() for size in (17, 33, 65)]
    assert errors[0] / errors[1] > 3.5
    assert errors[1] / errors[2] > 3.5
