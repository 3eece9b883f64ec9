"""Patches of points as points of the latent field: for every model, on one to four axes."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from factformer import Field, Grid, Problem, build_surrogate, catalog, load, metrics
from factformer.batch import Batch
from factformer.bundle import save_bundle
from factformer.config import fingerprint
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.evaluation.attention import record_attention
from factformer.evaluation.cost import Case, flops, random_batch
from factformer.kernels.estimates import training_bytes
from factformer.models import Backbone, ModelConfig
from factformer.nn.patches import PatchedGrid, Patches
from factformer.nn.patches.patches import lagrange
from factformer.surrogate import model_config
from small_models import small_sizes

MODELS = catalog.names("models")
CASES = {
    "line": (Grid(16, 6.28, True), 4),
    "line between walls, odd": (Grid(13, 1.0, False), 2),
    "plane": (Grid((12, 9), (6.28, 1.0), (True, False)), (3, 2)),
    "plane of cells": (Grid((8, 7), 1.0, False, "cells"), (1, 2)),
    "space": (Grid((6, 4, 8), 1.0, True), 2),
    "four axes": (Grid((4, 3, 4, 5), 1.0, (True, False, True, False)), (2, 1, 2, 2)),
}
EVERY = pytest.mark.parametrize("name", CASES)


def flow(grid: Grid, **options) -> Problem:
    boundary = "periodic" if all(grid.periodic) else "zero"
    fields = (Field("pressure"), Field("velocity", grid.num_axes))
    return Problem("flow", grid, fields, num_context_frames=2, horizon=4, boundary=boundary, **options)


def small(model: str, problem: Problem, **options):
    torch.manual_seed(0)
    sizes = small_sizes(model)
    count = problem.num_state_channels
    levels = torch.linspace(0.5, 2, count).tolist()
    moments = {f"{kind}_{moment}": levels for kind in ("context", "state") for moment in ("mean", "std")}
    normalizer = Normalizer(**moments, increment_std=levels)
    return build_surrogate(problem, model, marching_steps=2, normalizer=normalizer, **sizes, **options)


def frames_of(problem: Problem, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (batch, problem.num_context_frames, *problem.grid.shape, problem.num_state_channels)
    return torch.randn(shape, generator=generator)


def to_depth(u: Tensor, patch: tuple[int, ...]) -> Tensor:
    """One point at a time, as the words say it."""
    coarse = [size // p for size, p in zip(u.shape[2:-1], patch, strict=True)]
    result = u.new_zeros(*u.shape[:2], *coarse, math.prod(patch) * u.shape[-1])
    for place in torch.cartesian_prod(*map(torch.arange, coarse)).reshape(-1, len(coarse)).tolist():
        block = u[:, :, *(slice(i * p, (i + 1) * p) for i, p in zip(place, patch, strict=True))]
        result[:, :, *place] = block.flatten(2)
    return result


@pytest.mark.parametrize("model", MODELS)
@EVERY
def test_every_model_predicts_and_learns(model, name):
    grid, patch = CASES[name]
    problem = flow(grid)
    surrogate = small(model, problem, patch=patch)
    prediction = surrogate(frames_of(problem))
    assert prediction.shape == (2, 2, *grid.shape, problem.num_state_channels)
    metrics.loss(prediction, torch.ones_like(prediction), problem.state_slices).backward()
    for name, parameter in surrogate.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("model", MODELS)
def test_a_patched_surrogate_is_its_network_on_rearranged_arrays(model):
    """The oracle: encoder, backbone and decoder, called by hand on arrays cut into patches point by point."""
    grid, patch = Grid((8, 6), (2.0, 1.0), True), (2, 3)
    problem = flow(grid)
    surrogate = small(model, problem, patch=patch, residual=True).double()
    frames = frames_of(problem).double()
    normalizer = surrogate.normalizer
    inner = PatchedGrid(grid, patch)
    cut = to_depth((frames - normalizer.context_mean) / normalizer.context_std, patch)
    values = surrogate.decode(surrogate.backbone(surrogate.encoder(cut), inner), 2, inner)
    expected = to_depth(frames[:, -1:].expand(-1, 2, -1, -1, -1), patch) + values * normalizer.increment_std.repeat(6)
    torch.testing.assert_close(to_depth(surrogate(frames), patch), expected, rtol=1e-9, atol=1e-9)


def test_a_patch_of_one_is_no_patch():
    problem = flow(Grid((8, 6), 1.0, True))
    plain, patched = small("factformer_plus", problem), small("factformer_plus", problem, patch=(1, 1))
    assert patched.patches is None
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in patched.named_parameters()]
    assert torch.equal(plain(frames_of(problem)), patched(frames_of(problem)))


def test_configurations_without_patches_keep_the_fingerprint_of_their_runs():
    config = model_config("factformer")
    values = config.model_dump(mode="json", exclude={"patch"})
    assert config.fingerprint() == fingerprint(values)
    assert config.replace(patch=2).fingerprint() != config.fingerprint()


@pytest.mark.parametrize("model", ["fno", "ffno", "dilated_resnet"])
def test_shifts_by_whole_patches_in_are_shifts_out(model):
    problem = flow(Grid((12, 8), 6.28, True))
    surrogate = small(model, problem, patch=2).double()
    frames = frames_of(problem).double()
    expected = surrogate(frames).roll((4, -2), (2, 3))
    torch.testing.assert_close(surrogate(frames.roll((4, -2), (2, 3))), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(surrogate(frames.roll(1, 2)), surrogate(frames).roll(1, 2), atol=1e-3)


@EVERY
def test_cutting_and_joining_are_each_other_s_reverse(name):
    grid, patch = CASES[name]
    patches = Patches((patch,) * grid.num_axes if isinstance(patch, int) else patch, grid)
    u = torch.randn(2, 3, *grid.shape, 5)
    cut = patches.split(u, grid)
    assert cut.shape == (2, 3, *patches.home.shape, 5 * patches.size)
    assert torch.equal(patches.join(cut, grid), u)


def test_the_grid_of_patches_integrates_as_the_grid_of_its_points():
    for grid, patch in ((Grid((9, 8), 1.0, False), (2, 3)), (Grid((8, 6), 2.0, (True, False), "cells"), (2, 3))):
        coarse = PatchedGrid(grid, patch)
        for m in range(2):
            weights = coarse.weights(m)
            torch.testing.assert_close(weights.sum(), torch.ones((), dtype=torch.float64))
            points = [grid.axis(m)[i : i + patch[m]] for i in range(0, grid.shape[m], patch[m])]
            full = [i for i, part in enumerate(points) if len(part) == patch[m]]
            for i in full:
                torch.testing.assert_close(coarse.axis(m)[i], points[i].mean())
            assert coarse.is_even(m) and coarse.spacing(m) == pytest.approx(patch[m] * grid.spacing(m))
    assert not PatchedGrid(Grid(9, 1.0, False, "cells"), (2,)).equal_weights(0)
    torch.testing.assert_close(
        PatchedGrid(Grid(5, 1.0, False), (2,)).weights(0), torch.tensor([3, 4, 1], dtype=torch.float64) / 8
    )


def test_uneven_axes_keep_the_places_of_their_patches(tmp_path):
    x = torch.tensor([0.0, 0.1, 0.3, 0.6, 1.0])
    coarse = PatchedGrid(Grid.from_axes([x]), (2,))
    torch.testing.assert_close(coarse.axis(0), torch.tensor([0.05, 0.45, 1.2], dtype=torch.float64), atol=1e-6, rtol=0)
    assert not coarse.is_even(0) and coarse.resample(3).axis(0).tolist() == coarse.axis(0).tolist()
    problem = flow(Grid.from_axes([x, torch.linspace(0, 1, 6)]))
    surrogate = small("factformer_plus", problem, patch=2).eval()
    assert surrogate(frames_of(problem)).isfinite().all()
    loaded = load(save_bundle(surrogate, tmp_path / "bundle"))
    assert torch.equal(loaded(frames_of(problem)), surrogate(frames_of(problem)))


@pytest.mark.parametrize(
    ("grid", "patch", "words"),
    [
        (Grid(15, 1.0, True), 2, "does not divide the 15 points of periodic axis 0: .* are 14 and 16"),
        (Grid((8, 5), 1.0, True), (2, 4), "does not divide the 5 points of periodic axis 1: .* are 8"),
        (Grid(6, 1.0, False), 8, "leaves one point along axis 0"),
        (Grid((8, 8), 1.0, True), (2, 2, 2), "model.patch has 3 entries for a grid of 2 axes"),
        (Grid(8, 1.0, True), 0, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_cut_is_named(grid, patch, words):
    with pytest.raises(UserError, match=words):
        small("factformer", flow(grid), patch=patch)


def test_a_call_at_a_size_that_cannot_be_cut_is_refused_at_the_door():
    problem = flow(Grid(16, 1.0, True))
    surrogate = small("factformer", problem, patch=2)
    with pytest.raises(UserError, match="are 18 and 20"):
        surrogate(frames_of(problem.with_grid(problem.grid.resample(19))))


def test_masks_of_patches_hold_every_point_inside():
    grid = Grid((4, 5), 1.0, (True, False))
    mask = torch.zeros(1, 4, 5, dtype=torch.bool)
    mask[0, 1, 1] = mask[0, 3, 3] = True
    assert Patches((2, 2), grid).inside(mask, grid).int().tolist() == [[[1, 0, 0], [0, 1, 0]]]


@pytest.mark.parametrize("model", ["factformer_plus", "fno"])
def test_what_lies_outside_the_domain_does_not_matter(model):
    problem = flow(Grid((8, 7), 1.0, (True, False)), masked=True)
    torch.manual_seed(0)
    surrogate = build_surrogate(problem, model, patch=2, dim=16, depth=1, marching_steps=2)
    inside = torch.rand(2, 8, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    frames = frames_of(problem)
    other = torch.where(inside[:, None, ..., None], frames, torch.full_like(frames, 7.0))
    first, second = (surrogate(Batch(context, mask=inside)) for context in (frames, other))
    torch.testing.assert_close(first, second)
    assert (first.masked_select(~inside[:, None, ..., None]) == 0).all()


def smooth(grid: Grid) -> Tensor:
    wave = 2 * math.pi if all(grid.periodic) else 2.0
    x, y = (wave * grid.mesh()).unbind(-1)
    return (torch.sin(x + 0.3) * torch.cos(2 * y) + 0.5 * torch.cos(x - y))[None, None, ..., None]


@pytest.mark.parametrize(("walls", "factor"), [(False, 5), (True, 3)])
def test_patches_with_a_common_centre_hold_the_same_values_on_two_grids(walls, factor):
    grid = Grid((48, 48), 1.0, not walls, "cells")
    patches = Patches((2, 2), grid)
    fine, shared = grid.resample(48 * factor), slice(factor // 2 if walls else factor // 4, None, factor)
    torch.testing.assert_close(patches.grid(fine).axis(0)[shared], patches.home.axis(0))
    values = patches.split(smooth(fine), fine)[:, :, shared, shared]
    torch.testing.assert_close(values, patches.split(smooth(grid), grid), rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_patch_keeps_its_extent_on_finer_grids():
    """The same weights on the same function give nearly the same latent field; patches of neighbours do not."""
    grid = Grid((48, 48), 1.0, True)
    sizes = {"dim": 16, "depth": 2, "heads": 2, "head_dim": 4, "kernel_dim": 8, "fourier_std": 1.0, "rotary_scale": 8.0}
    kept = build_surrogate(Problem("box", grid, (Field("u"),)), "factformer_plus", patch=2, **sizes).double()
    lost, fine, shared = copy.deepcopy(kept), grid.resample(240), slice(1, None, 5)
    lost.patches.home = PatchedGrid(fine, (2, 2))  # as if it were at home there
    coarse = kept.encode(Batch(smooth(grid)), grid)
    spread = (coarse - coarse.mean((1, 2))).norm()
    found = [s.encode(Batch(smooth(fine)), fine)[:, shared, shared] for s in (kept, lost)]
    errors = [float((latent - coarse).norm() / spread) for latent in found]
    assert errors[0] < 0.02
    assert errors[0] < 0.3 * errors[1]


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize(("size", "limit"), [(18, 0.03), (36, 0.02), (96, 0.02)])
def test_a_field_goes_through_patches_of_another_grid(size, limit, periodic):
    home = Grid((24, 24), 1.0, periodic)
    grid, patches = home.resample(size), Patches((2, 2), home)
    u = smooth(grid)
    assert (patches.join(patches.split(u, grid), grid) - u).norm() < limit * u.norm()


def test_interpolation_is_exact_for_cubic_polynomials():
    points, wanted = torch.linspace(0, 1, 7, dtype=torch.float64), torch.linspace(0, 1, 30, dtype=torch.float64)
    cubic = lambda x: 1 - 2 * x + 3 * x**2 - x**3  # noqa: E731
    torch.testing.assert_close(lagrange(points, wanted) @ cubic(points), cubic(wanted))


def test_a_model_of_one_s_own_is_patched_too():
    class Config(ModelConfig):
        name: str = "identity_of_patches"

    class Identity(Backbone):
        config_class = Config

        def forward(self, z, grid, conditions=None):
            assert tuple(z.shape[1:-1]) == grid.shape == (4, 3)
            return z

    problem = flow(Grid((8, 6), 1.0, True))
    surrogate = build_surrogate(problem, Identity, patch=2, dim=16)
    assert surrogate(frames_of(problem), 2).shape == (2, 2, 8, 6, 3)


def test_static_fields_and_forcing_are_cut_with_the_frames():
    grid = Grid((8, 6), 1.0, True)
    problem = flow(grid, static=(Field("depth"),), forcing=(Field("inflow", 2),))
    surrogate = build_surrogate(problem, "factformer_plus", patch=2, marching_steps=2, dim=16, depth=1)
    batch = random_batch(surrogate, 2, 2, torch.Generator().manual_seed(0))
    before = surrogate(batch)
    for part in ("static", "forcing"):
        assert not torch.equal(surrogate(batch._replace(**{part: getattr(batch, part) + 1.0})), before)


def test_a_steady_problem_is_patched():
    problem = Problem(
        "steady", Grid((9, 8), 1.0, False), (Field("u"),), (Field("a"),), num_context_frames=0, boundary="zero"
    )
    surrogate = build_surrogate(problem, patch=2, dim=16, depth=1)
    assert surrogate(torch.randn(2, 1, 9, 8, 1)).shape == (2, 1, 9, 8, 1)


def test_bundles_keep_the_patch(tmp_path):
    problem = flow(Grid((8, 6), 1.0, True))
    surrogate = small("factformer_plus", problem, patch=(2, 3)).eval()
    loaded = load(save_bundle(surrogate, tmp_path / "bundle"))
    assert loaded.config.patch == (2, 3)
    assert torch.equal(loaded(frames_of(problem)), surrogate(frames_of(problem)))
    assert torch.equal(copy.deepcopy(surrogate)(frames_of(problem)), surrogate(frames_of(problem)))


def test_what_counts_and_reports_knows_the_grid_of_patches():
    problem = flow(Grid((16, 12), 1.0, True))
    plain, patched = (
        flops(Case("case", problem, "factformer_plus", {"dim": 16, "depth": 1, "patch": p}))["forward_flops"]
        for p in (1, 2)
    )
    assert patched < plain / 2
    one, four = (small("factformer", problem, patch=p) for p in (1, 2))
    assert training_bytes(four, 64) < training_bytes(one, 64)
    ((_, u, grid, _),) = record_attention(four, Batch(frames_of(problem)))[0]
    assert tuple(u.shape[1:-1]) == grid.shape == (8, 6)


COMPILE = """
import torch
from factformer import Field, Grid, Problem, build_surrogate
from factformer.batch import Batch
problem = Problem("test", Grid((6, 5), 1.0, (True, False)), (Field("a"),), num_context_frames=3, boundary="zero")
surrogate = build_surrogate(problem, patch=2, dim=16, depth=1, heads=2, head_dim=8, kernel_dim=8)
frames = torch.randn(2, 3, 6, 5, 1)
expected = surrogate(frames, 2)
compiled = torch.compile(surrogate.predict, backend="aot_eager", fullgraph=True)
result = compiled(Batch(frames), 2, problem.grid)
assert torch.allclose(result, expected, atol=1e-5)
result.sum().backward()
program = torch.export.export(surrogate.eval(), (frames,), strict=False)
assert torch.allclose(program.module()(frames), surrogate(frames), atol=1e-5)
print("agrees")
"""


def test_compiles_and_exports_whole():
    """In a process of its own: the run-time shape checks of the tests are not part of the graph."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]
