"""Convolutions and padding against sums over offsets written out, on 1 to 4 axes."""

from itertools import product

import pytest
import torch
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.convolution import Convolution, pad, pad_axis, stretch_matrix


def continued(size: int, index: int, kind: str) -> int | None:
    """Where the value at ``index`` beyond the ends of an axis comes from."""
    if kind == "periodic":
        return index % size
    if kind == "zero":
        return index if 0 <= index < size else None
    index = index % (2 * size - 2)
    return index if index < size else 2 * size - 2 - index


def convolution_sum(layer: Convolution, u: torch.Tensor) -> torch.Tensor:
    """``Σ_o w_o u(x_{s i + d o}) + b`` point by point."""
    sizes = u.shape[1:-1]
    num_axes = len(sizes)
    kernel_size, per_group = layer.weight.shape[2], layer.weight.shape[1]
    out_per_group = layer.weight.shape[0] // layer.groups
    points = [range(0, size, layer.stride) for size in sizes]
    result = torch.zeros(u.shape[0], *(len(p) for p in points), layer.weight.shape[0], dtype=u.dtype)
    for target in product(*(range(len(p)) for p in points)):
        result[(slice(None), *target)] = layer.bias
        for offset in product(range(kernel_size), repeat=num_axes):
            source = [
                continued(size, i * layer.stride + (o - kernel_size // 2) * layer.dilation, kind)
                for size, i, o, kind in zip(sizes, target, offset, layer.padding, strict=True)
            ]
            if None in source:
                continue
            values = u[(slice(None), *source)]
            for group in range(layer.groups):
                inputs = slice(group * per_group, (group + 1) * per_group)
                outputs = slice(group * out_per_group, (group + 1) * out_per_group)
                weight = layer.weight[(outputs, slice(None), *offset)]
                result[(slice(None), *target, outputs)] += values[:, inputs] @ weight.T
    return result


@pytest.mark.parametrize("kind", ["periodic", "zero", "reflect"])
@pytest.mark.parametrize("width", [0, 1, 3, 4, 11])
def test_padding_continues_the_axis_by_any_width(kind, width):
    u = torch.arange(1.0, 5.0).reshape(1, 4, 1)
    expected = []
    for index in range(-width, 4 + width):
        source = continued(4, index, kind)
        expected.append(0.0 if source is None else u[0, source, 0].item())
    assert pad_axis(u, 1, width, kind)[0, :, 0].tolist() == expected


def test_each_axis_is_padded_by_its_own_kind():
    u = torch.randn(2, 5, 6, 3)
    padded = pad(u, [2, 1], ["periodic", "zero"])
    assert padded.shape == (2, 9, 8, 3)
    torch.testing.assert_close(padded[:, :2, 1:-1], u[:, -2:])
    assert not padded[:, :, 0].any()


CASES = [
    (("periodic",), (7,), {"dilation": 3}),
    (("periodic", "zero"), (5, 6), {"dilation": 2}),
    (("reflect", "zero"), (4, 7), {"stride": 2}),
    (("zero", "reflect", "periodic"), (4, 3, 5), {"groups": 2}),
    (("zero", "zero", "periodic", "reflect"), (3, 4, 3, 2), {}),
    (("periodic", "zero", "zero", "zero"), (4, 3, 3, 5), {"stride": 2, "groups": 2}),
    (("periodic",) * 4, (3, 2, 3, 2), {"dilation": 2}),
]


@pytest.mark.parametrize(("padding", "shape", "options"), CASES, ids=[str(case[1:]) for case in CASES])
def test_convolution_is_the_sum_over_offsets(padding, shape, options):
    torch.manual_seed(0)
    layer = Convolution(padding, 4, 6, 3, **options).double()
    u = torch.randn(2, *shape, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(u), convolution_sum(layer, u), rtol=1e-12, atol=1e-12)


def test_periodic_convolution_is_the_library_s_circular_one():
    torch.manual_seed(0)
    layer = Convolution(("periodic", "periodic"), 3, 5, kernel_size=5)
    u = torch.randn(2, 8, 9, 3)
    wrapped = functional.pad(u.movedim(-1, 1), (2, 2, 2, 2), mode="circular")
    expected = functional.conv2d(wrapped, layer.weight, layer.bias).movedim(1, -1)
    torch.testing.assert_close(layer(u), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("zero",) * 5, 4, 4), "1 to 4 axes"),
        ((("zero",), 4, 4, 2), "odd kernel size"),
    ],
)
def test_impossible_convolutions_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Convolution(*arguments)


def test_groups_must_divide_the_channels():
    with pytest.raises(UserError, match="3 groups"):
        Convolution(("zero",), 4, 4, groups=3)


def test_a_stretched_stencil_reads_cubic_polynomials_exactly():
    for distance in (0.4, 0.75, 1.0, 1.5, 2.3, 3.0):
        matrix = stretch_matrix(5, distance)
        offsets = torch.arange(matrix.shape[1], dtype=torch.float64) - matrix.shape[1] // 2
        places = torch.arange(-2.0, 3.0, dtype=torch.float64) * distance
        for power in range(4):
            assert torch.allclose(matrix @ offsets**power, places**power, atol=1e-8)
    assert torch.equal(stretch_matrix(5, 1.0), torch.eye(5, dtype=torch.float64))
    assert stretch_matrix(3, 2.0).tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    assert stretch_matrix(1, 0.3).tolist() == [[1]]


@pytest.mark.parametrize("num_axes", [1, 2, 3, 4])
def test_twice_as_many_points_are_a_dilation(num_axes):
    torch.manual_seed(0)
    home, fine = Grid([4] * num_axes, 1.0, True), Grid([8] * num_axes, 1.0, True)
    kinds = ["periodic"] * num_axes
    layer = Convolution(kinds, 2, 2, 3, groups=2, home=home).double()
    dilated = Convolution(kinds, 2, 2, 3, groups=2, dilation=2).double()
    dilated.load_state_dict(layer.state_dict())
    u = torch.randn(2, *fine.shape, 2, dtype=torch.float64)
    assert torch.allclose(layer(u, fine), dilated(u))
    coarse = u[(slice(None), *[slice(None, None, 2)] * num_axes)]
    there = layer(u, fine)[(slice(None), *[slice(None, None, 2)] * num_axes)]
    assert torch.allclose(there, layer(coarse, home))  # what it sees at home is among the points
    for grid, step in ((home, 1), (fine, 2), (None, 1)):
        assert layer.at(grid)[0] is layer.weight and layer.at(grid)[1] == step
    between, step = layer.at(Grid([6] * num_axes, 1.0, True))
    assert step == 1 and between.shape[2:] == (7,) * num_axes  # 1.5 points apart
    # made for the fine grid, its weights lie on every point of the coarse one
    assert torch.allclose(Convolution.forward(dilated_at(fine, dilated), coarse, home), layer(coarse))


def dilated_at(home, layer):
    layer.home = home
    return layer


def test_a_stencil_keeps_its_reach_on_any_grid():
    """On a smooth field it gives on every grid what the points at home would give, ever nearer as grids get finer."""
    torch.manual_seed(0)
    home = Grid((16, 13), (2 * torch.pi, 1.0), (True, False))
    layer = Convolution(["periodic", "reflect"], 1, 3, 5, home=home).double()

    def field(x, y):
        return torch.sin(x) * torch.cos(torch.pi * y)  # even about both ends of the second axis

    def exact(grid):
        """The stencil's sum with the field where it really is."""
        x, y = grid.mesh().unbind(-1)
        total = layer.bias.detach().expand(*grid.shape, 3).clone()
        for i, j in product(range(5), repeat=2):
            value = field(x + (i - 2) * home.spacing(0), y + (j - 2) * home.spacing(1))
            total += value[..., None] * layer.weight[:, 0, i, j].detach()
        return total

    errors = []
    for shape in ((16, 13), (20, 18), (40, 35), (80, 69)):
        grid = home.resample(shape)
        result = layer(field(*grid.mesh().unbind(-1))[None, ..., None], grid)[0]
        errors.append(float((result - exact(grid)).abs().max().detach()))
    assert errors[0] < 1e-12
    assert errors[1] < 0.02 and errors[2] < errors[1] / 8 and errors[3] < errors[2] / 8


def test_what_is_not_evenly_spaced_stays_as_it_is():
    home = Grid.from_axes([[0.0, 0.1, 0.4, 1.0]])
    layer = Convolution(["zero"], 1, 1, home=home)
    assert layer.at(Grid.from_axes([[0.0, 0.2, 0.5, 0.6, 1.0]])) == (layer.weight, 1)


def test_stretched_weights_bear_half_precision():
    home = Grid((8, 6), 1.0, True)
    layer = Convolution(["periodic"] * 2, 2, 2, home=home)
    grid = home.resample((12, 9))
    u = torch.randn(1, *grid.shape, 2, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(u, grid)
    half.float().sum().backward()
    assert half.dtype == torch.bfloat16 and layer.weight.grad.isfinite().all()
    assert torch.allclose(half.float(), layer(u, grid), atol=0.05)
