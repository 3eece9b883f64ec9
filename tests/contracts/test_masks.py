"""Domains with bodies: what every model of the catalog, and every number that is reported, makes of a mask."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_models import MODELS, flow, small

import factformer
from factformer import Field, Grid, Problem, metrics
from factformer.batch import Batch, Window
from factformer.bundle import load, save_bundle
from factformer.data import ArrayDataset, open_dataset
from factformer.data.hdf5 import SplitFile
from factformer.data.layout import Contents
from factformer.data.writer import SplitWriter
from factformer.errors import NonFinite, UserError
from factformer.evaluation import accuracy
from factformer.evaluation.run import sample_arrays
from factformer.kernels import attention, local, march_decode
from factformer.nn.conditions import Conditions
from factformer.pdes import find_pde
from factformer.protocols import build_protocol, parse_protocol
from factformer.report.samples import read_rollouts
from factformer.training.feed.augmentation import Augmentation
from factformer.training.loop.objective import Objective
from factformer.training.loop.validation import Validation

LINE = flow("line", Grid(13, 1.0, False), "reflect")
PLANE = flow("plane", Grid((9, 8), (1.0, 2.0), (True, False)), "zero")
SPACE = flow("space", Grid((5, 4, 3), 6.28, True))
STEADY = Problem(
    "steady", Grid((9, 8), 1.0, False), (Field("y"),), (Field("x"),), num_context_frames=0, boundary="zero"
)
PROBLEMS = {problem.name: replace(problem, masked=True) for problem in (LINE, PLANE, SPACE, STEADY)}
EVERY = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
MASKED = PROBLEMS["plane"]


@pytest.fixture(params=MODELS)
def model(request) -> str:
    return request.param


def random(*shape: int, seed: int = 5, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def holes(problem: Problem, batch: int = 2) -> torch.Tensor:
    """A random mask for each sample; the first has no point on the first line of the first axis."""
    shape = problem.grid.shape
    mask = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(6)) > 0.3
    mask[0, 0] = False
    return mask


def sample(problem: Problem, dtype: torch.dtype = torch.float64) -> Batch:
    shape, mask = problem.grid.shape, holes(problem)
    if problem.steady:
        return Batch(static=random(2, *shape, problem.num_static_channels, dtype=dtype), mask=mask)
    frames = random(2, problem.num_context_frames, *shape, problem.num_state_channels, dtype=dtype)
    return Batch(frames, mask=mask)


def outside(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Where ``values (batch, [frame,] *grid, channel)`` lie outside."""
    where = ~mask.unsqueeze(-1)
    return (where if values.ndim == mask.ndim + 1 else where.unsqueeze(1)).expand_as(values)


def spoiled(batch: Batch, value: float) -> Batch:
    return batch._replace(
        **{
            name: part.masked_fill(outside(part, batch.mask), value)
            for name, part in zip(batch.names, batch.tensors, strict=True)
            if name in ("context", "static", "forcing")
        }
    )


@EVERY
def test_nothing_outside_changes_a_bit_and_predictions_are_zero_there(model, problem):
    surrogate = small(model, problem).double()
    batch = sample(problem)
    expected = surrogate(batch)
    assert bool((expected[outside(expected, batch.mask)] == 0).all())
    assert float(expected[~outside(expected, batch.mask)].detach().std()) > 1e-3
    for value in (1e6, math.nan):
        assert torch.equal(surrogate(spoiled(batch, value)), expected)


@EVERY
def test_the_backbone_itself_reads_nothing_outside(model, problem):
    """Also where the latent field holds something there, as after a positional encoding."""
    surrogate = small(model, problem).double()
    mask = holes(problem)
    z = random(2, *problem.grid.shape, surrogate.config.dim)
    results = [
        surrogate.backbone(z.masked_fill(~mask.unsqueeze(-1), value), problem.grid, Conditions(mask=mask))[mask]
        for value in (0.0, 1e6)
    ]
    assert torch.equal(*results)


@EVERY
def test_a_mask_of_the_whole_box_gives_the_numbers_without_one(model, problem):
    surrogate = small(model, problem).double()
    batch = sample(problem)._replace(mask=torch.ones(2, *problem.grid.shape, dtype=torch.bool))
    grid = problem.grid
    z = surrogate.backbone(surrogate.lifted(batch, grid), grid)
    z = z if surrogate.boundary_block is None else surrogate.boundary_block(z, grid)
    values = surrogate.decode(z, 1, grid)
    plain = surrogate.normalizer.denormalize(values)
    if surrogate.residual:
        plain = batch.context[:, -1:] + values * surrogate.normalizer.increment_std
    torch.testing.assert_close(surrogate(batch, 1), plain, rtol=1e-9, atol=1e-9)


@EVERY
def test_gradients_are_finite_and_reach_every_parameter(model, problem):
    surrogate = small(model, problem).double()
    batch = spoiled(sample(problem), math.nan)
    prediction = surrogate(batch)
    truth = random(*prediction.shape, seed=9).masked_fill(outside(prediction, batch.mask), math.nan)
    metrics.loss(prediction, truth, problem.state_slices, batch.mask).backward()
    for name, parameter in surrogate.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_it_knows_where_the_bodies_are(model):
    """A body somewhere else changes the prediction at points that are inside either way."""
    surrogate = small(model, MASKED).double()
    batch = sample(MASKED)
    other = batch.mask.roll(3, 1)
    both = (batch.mask & other)[:, None].expand(-1, surrogate.marching_steps, -1, -1)
    assert not torch.allclose(surrogate(batch)[both], surrogate(batch._replace(mask=other))[both])


def test_four_axes_work_with_a_mask(model):
    problem = replace(flow("four", Grid((4, 3, 5, 4), 1.0, (True, False, True, False)), "zero"), masked=True)
    surrogate = small(model, problem)
    batch = spoiled(sample(problem, torch.float32), math.nan)
    prediction = surrogate(batch)
    prediction.square().mean().backward()
    assert prediction.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in surrogate.parameters())


def test_a_bundle_of_a_masked_problem_gives_the_same_predictions(model, tmp_path):
    surrogate = small(model, MASKED).eval()
    loaded = load(save_bundle(surrogate, tmp_path / "bundle"))
    batch = sample(MASKED, torch.float32)
    assert torch.equal(surrogate(batch), loaded(batch))


@pytest.mark.parametrize("protocol", ["latent_marching", "autoregressive"])
def test_protocols_and_loss_read_nothing_outside(protocol):
    surrogate = small("factformer_plus", MASKED)
    plan = {"marching_steps": 2, "pushforward": 1} if protocol == "latent_marching" else {"unroll": 2}
    built = build_protocol(parse_protocol({"name": protocol, **plan}), MASKED)
    objective = Objective(surrogate, built, gradient_loss=0.5)
    objective.offset = torch.tensor([100.0, 0.0, 0.0])
    mask = holes(MASKED)
    frames = random(2, built.window_length, *MASKED.grid.shape, 3, dtype=torch.float32)
    losses = []
    for value in (0.0, 1e6, math.nan):
        window = Window(frames.masked_fill(outside(frames, mask), value), Batch(mask=mask))
        losses.append(objective(window, plan)[0])
    assert losses[0].isfinite() and losses[0] == losses[1] == losses[2]
    losses[2].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in surrogate.parameters())


def compared(mask: torch.Tensor):
    """Two fields with spoiled values outside, and their points inside as lines of their own."""
    prediction, truth = (random(2, 3, *mask.shape[1:], 2, seed=seed) for seed in (1, 2))
    prediction = prediction + truth
    deviation = torch.tensor([50.0, 70.0], dtype=torch.float64)  # LEAST of it is near the size of the truth
    wrong = [values.masked_fill(outside(values, mask), bad) for values, bad in ((prediction, 1e6), (truth, math.nan))]
    lines = [values[:, :, mask[0]] for values in (prediction, truth)]
    return wrong, lines, deviation


@pytest.mark.parametrize("name", ["relative_l2", "relative_l2_per_frame", "vrmse", "correlation"])
def test_metrics_count_the_points_inside(name):
    mask = holes(MASKED)[1:].expand(2, -1, -1)
    wrong, lines, deviation = compared(mask)
    metric = getattr(metrics, name)
    options = [()] if name == "correlation" else [(None,), (deviation,)]
    for given in options:
        torch.testing.assert_close(metric(*wrong, *given, mask=mask), metric(*lines, *given))


def test_differences_across_a_wall_do_not_count():
    mask = torch.ones(1, 8, dtype=torch.bool)
    mask[0, 4] = False
    prediction, truth = random(1, 1, 8, 1, seed=1), random(1, 1, 8, 1, seed=2)
    halves = [slice(0, 4), slice(5, 8)]
    error, size = (sum(float(v[0, 0, h, 0].diff().square().sum()) for h in halves) for v in (prediction - truth, truth))
    found = metrics.relative_h1(prediction.masked_fill(outside(prediction, mask), 1e6), truth, mask=mask)
    assert float(found) == pytest.approx(math.sqrt(error / size))


def test_spectra_are_of_the_field_that_is_zero_outside():
    mask = holes(MASKED)[1:]
    prediction, truth = (random(1, 2, *MASKED.grid.shape, 1, seed=seed) for seed in (1, 2))
    filled = [values.masked_fill(outside(values, mask), 0.0) for values in (prediction, truth)]
    assert torch.equal(metrics.spectrum_error(prediction, truth, mask), metrics.spectrum_error(*filled))


def frames_of(problem: Problem, num_trajectories: int = 3, num_frames: int = 6) -> torch.Tensor:
    shape = (num_trajectories, num_frames, *problem.grid.shape, problem.num_state_channels)
    return 5 + random(*shape, dtype=torch.float32)


def spoiled_dataset(value: float, split: str = "train", **options) -> ArrayDataset:
    frames, mask = frames_of(MASKED), holes(MASKED, 3)
    return ArrayDataset(frames.masked_fill(outside(frames, mask), value), MASKED, split, mask=mask, **options)


def test_statistics_are_of_the_points_inside():
    data = spoiled_dataset(math.nan)
    frames, mask = frames_of(MASKED), holes(MASKED, 3)
    found = data.normalizer()
    inside = torch.cat([frames[i][:, mask[i]].flatten(0, 1) for i in range(3)]).double()
    torch.testing.assert_close(found.state_mean.double(), inside.mean(0), rtol=1e-6, atol=1e-6)
    assert float(found.state_std[0]) == pytest.approx(float(inside[:, 0].std(correction=0)), rel=1e-6)
    steps = torch.cat([frames[i].diff(dim=0)[:, mask[i]].flatten(0, 1) for i in range(3)]).double()
    assert float(found.increment_std[0]) == pytest.approx(float(steps[:, 0].std(correction=0)), rel=1e-6)
    window = data.window([0, 2])
    assert bool((window.frames[outside(window.frames, window.known.mask)] == 0).all())


def test_files_hold_zeros_outside_and_the_statistics_of_the_inside(tmp_path):
    data = spoiled_dataset(0.0)
    frames, mask = frames_of(MASKED), holes(MASKED, 3)
    writer = SplitWriter(tmp_path / "data" / "train.hdf5", Contents(MASKED, "train", 3, 6))
    writer.prepare()
    for batch in writer.pending(2):
        rows = slice(batch.start, batch.stop)
        with writer.batch(batch) as output:
            output.write_mask(mask[rows].numpy())
            for frame in frames.masked_fill(outside(frames, mask), math.nan)[rows].unbind(1):
                output.write(frame.numpy())
    writer.finish()
    stored = open_dataset(tmp_path / "data")
    assert torch.equal(stored.read(slice(None)), data.read(slice(None)))
    for name, values in data.normalizer().to_dict().items():
        assert stored.normalizer().to_dict()[name] == pytest.approx(values, rel=1e-6), name


def test_a_file_that_holds_something_outside_is_read_as_zero_there(tmp_path, monkeypatch):
    data = spoiled_dataset(0.0)
    path = tmp_path / "data" / "train.hdf5"
    writer = SplitWriter(path, Contents(MASKED, "train", 3, 6))
    writer.prepare()
    with writer.batch(range(3)) as output:
        output.write_mask(data.read(slice(None), part="mask").numpy())
        for frame in data.read(slice(None)).unbind(1):
            output.write(frame.numpy())
    writer.finish()
    read = SplitFile.read

    def foreign(self, trajectories, frames, problem, part="state", *section, **options):
        """As a file of somebody else may be: ours hold zeros outside."""
        values, mask = (
            read(self, trajectories, frames, problem, part, *section, **options),
            holes(MASKED, 3).numpy()[trajectories],
        )
        return values if part == "mask" else np.where(mask[:, None, ..., None], values, np.float32(np.nan))

    monkeypatch.setattr(SplitFile, "read", foreign)
    stored = open_dataset(path)
    assert torch.equal(stored.read([2, 0]), data.read([2, 0]))
    assert np.array_equal(stored.read_exact([1], slice(2, 4)), data.read([1], slice(2, 4)).numpy())


class Generated(ArrayDataset):
    """Data that say what they were made with, as those of a solver do."""

    @property
    def provenance(self) -> dict:
        return {"parameters": find_pde(self.problem.name).parameters().model_dump()}


@pytest.mark.parametrize("pde", ["kolmogorov_flow", "darcy_flow", "isotropic_turbulence", "smoke_buoyancy"])
def test_augmentation_moves_the_mask_with_the_fields(pde):
    problem = replace(find_pde(pde).problem(8), masked=True)
    shape, mask = problem.grid.shape, holes(problem, 3)
    fields = {}
    if problem.static:
        fields["static"] = random(3, *shape, problem.num_static_channels, dtype=torch.float32).abs() + 1
    num_frames = 1 if problem.steady else 3
    frames = random(3, num_frames, *shape, problem.num_state_channels, dtype=torch.float32).abs() + 1
    data = Generated(frames, problem, mask=mask, **fields)
    window = data.window([0, 1, 2])
    moved = Augmentation(pde, data, 0)(window, 1, range(3))
    assert not torch.equal(moved.known.mask, window.known.mask)
    assert torch.equal(moved.frames[:, 0, ..., 0] != 0, moved.known.mask)


def test_validation_and_evaluation_read_nothing_outside():
    surrogate = small("factformer", MASKED).eval()
    clean, bad = (spoiled_dataset(value) for value in (0.0, 1e6))
    objective = Objective(surrogate, build_protocol(parse_protocol({"marching_steps": 2}), MASKED))
    results = []
    for data in (clean, bad):
        errors = Validation(data, 2, torch.device("cpu")).errors(objective)
        scores = accuracy.evaluate(surrogate, data, num_frames=2, num_starts=2, timing=False, device="cpu")
        results.append((errors, {name: vars(values) for name, values in scores.fields.items()}))
    assert results[0] == results[1]
    assert all(math.isfinite(error) for error in results[0][0].values())


def test_a_roll_out_takes_nan_outside_and_gives_zero_there():
    surrogate = small("factformer_plus", MASKED).eval()
    batch = spoiled(sample(MASKED, torch.float32), math.nan)
    with torch.no_grad():
        frames = torch.stack(list(factformer.rollout(surrogate, batch.context, 5, mask=batch.mask.numpy())), dim=1)
    assert frames.isfinite().all()
    assert bool((frames[outside(frames, batch.mask)] == 0).all())


def test_fit_takes_nan_outside():
    fitted = factformer.fit(
        frames_of(MASKED).masked_fill(outside(frames_of(MASKED), holes(MASKED, 3)), math.nan).numpy(),
        grid=MASKED.grid,
        frame_dt=0.1,
        fields={"pressure": 1, "velocity": 2},
        mask=holes(MASKED, 3),
        num_context_frames=2,
        horizon=2,
        updates=2,
        settings={f"model.{key}": value for key, value in {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4}.items()},
        progress=False,
    )
    assert fitted.problem.masked
    assert bool(torch.isfinite(fitted.normalizer.state_mean).all())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b._replace(mask=None), "'plane' needs a mask of the points inside its domain; give mask="),
        (lambda b: b._replace(mask=b.mask[:, :-1]), r"mask is on a grid of \(8, 8\) points beside \(9, 8\)"),
        (lambda b: b._replace(mask=b.mask.unsqueeze(-1)), r"expected a mask \(batch, axis 0, axis 1\), got a tensor"),
        (lambda b: b._replace(mask=b.mask & False), "the mask of sample 0 has no point inside the domain"),
        (
            lambda b: b._replace(context=b.context * math.nan),
            r"the input holds NaN or infinite values \(samples \[0, 1\]",
        ),
    ],
    ids=["missing", "misshapen", "with channels", "empty", "all NaN"],
)
def test_a_bad_mask_or_nan_inside_is_one_line(change, words):
    batch = change(sample(MASKED, torch.float32))
    with pytest.raises(UserError, match=words):
        small("factformer", MASKED)(batch)


def test_nan_inside_the_domain_is_named():
    batch = sample(MASKED, torch.float32)
    inside = batch.mask[1].nonzero()[0].tolist()
    batch.context[1, 0, *inside, 0] = math.nan
    with pytest.raises(NonFinite, match=r"samples \[1\]"):
        small("factformer", MASKED)(batch)
    frames = frames_of(MASKED)
    frames[1, 2, *holes(MASKED, 3)[1].nonzero()[0].tolist(), 0] = math.inf
    with pytest.raises(UserError, match="NaN or infinite values in trajectory 1"):
        ArrayDataset(frames, MASKED, mask=holes(MASKED, 3))


def test_data_with_an_empty_mask_are_named():
    mask = holes(MASKED, 3)
    mask[2] = False
    with pytest.raises(UserError, match="mask of trajectory 2 has no point inside the domain"):
        ArrayDataset(frames_of(MASKED), MASKED, mask=mask)


def test_the_roll_outs_of_an_evaluation_hold_the_bodies(tmp_path):
    surrogate = small("factformer", MASKED).eval()
    arrays = sample_arrays(surrogate, spoiled_dataset(0.0), 2, 3, "32-true")
    path = tmp_path / "rollouts.npz"
    np.savez_compressed(path, allow_pickle=False, **arrays)
    found = read_rollouts(path).rollouts
    assert len(found) == 3
    for one, mask in zip(found, holes(MASKED, 3).numpy(), strict=True):
        for values in (one.truth, one.prediction, one.context):
            assert np.array_equal(np.isnan(values), np.broadcast_to(~mask[..., None], values.shape))
    np.savez_compressed(path, allow_pickle=False, **{**arrays, "mask": arrays["mask"][:, 1:]})
    with pytest.raises(UserError, match="its mask is bool of shape"):
        read_rollouts(path)


def test_memory_of_a_solver_holds_zeros_outside_and_the_statistics_of_the_inside():
    from factformer.data.generate.simulated import _Memory

    frames, mask = frames_of(MASKED), holes(MASKED, 3)
    memory = _Memory(Contents(MASKED, "train", 3, 6), torch.device("cpu"), torch.float32)
    memory.close(range(3), frames, Batch(mask=mask))
    expected = spoiled_dataset(0.0)
    assert torch.equal(memory.frames, expected.read(slice(None)))
    for name, values in expected.normalizer().to_dict().items():
        assert memory.normalizer().to_dict()[name] == pytest.approx(values, rel=1e-5), name


def test_fused_kernels_take_masked_stages():
    surrogate = small("factformer_plus", MASKED)
    layer, grid, mask = surrogate.backbone.layers[0], MASKED.grid, holes(MASKED)
    z = random(2, *grid.shape, 16, dtype=torch.float32)
    for kernels, stage, arguments in (
        (attention, layer.attention.attention, (z, None, grid)),
        (local, layer.local, (z, grid)),
        (march_decode, surrogate.marching, (z, 2, surrogate.decoder, grid, None)),
    ):
        assert kernels.fits(stage, *arguments)
        assert kernels.fits(stage, *arguments, mask)
