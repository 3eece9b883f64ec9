"""Everything that is known of a trajectory arrives unchanged wherever a batch arrives.

The problem below has every part: static fields, forcing, parameters and a mask. Each test takes one place of the house
and looks there for the numbers of the trajectories that it asked for.
"""

import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import factformer
from factformer import Field, Grid, Problem, build_surrogate
from factformer.batch import Batch, Window
from factformer.data import ArrayDataset, convert, open_dataset
from factformer.data.layout import Contents
from factformer.data.windows import Windows
from factformer.data.writer import SplitWriter
from factformer.errors import NonFinite, UserError
from factformer.evaluation import accuracy
from factformer.prediction import read_context
from factformer.protocols import build_protocol, parse_protocol
from factformer.surrogate import Surrogate
from factformer.training.feed.feeding import ResidentFeed, StreamingFeed, Visits
from factformer.training.feed.noise import ContextNoise
from factformer.training.loop.captured import CapturedStep
from factformer.training.loop.machine import keep_inputs
from factformer.training.loop.objective import Objective
from factformer.training.loop.step import StepParts, train_step
from factformer.training.loop.validation import Validation
from small_models import channel_on

GRID = Grid((6, 5), 2 * math.pi, True)
PROBLEM = channel_on(GRID)
SIZES = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
NUM_TRAJECTORIES, NUM_FRAMES = 4, 9
CPU = torch.device("cpu")


def known(num_trajectories: int = NUM_TRAJECTORIES) -> dict[str, torch.Tensor]:
    """Values that tell trajectory and frame from all others; fields are zero outside the mask."""
    generator = torch.Generator().manual_seed(1)
    shape = GRID.shape
    values = {
        "static": torch.randn(num_trajectories, *shape, 1, generator=generator),
        "forcing": torch.randn(num_trajectories, NUM_FRAMES, *shape, 2, generator=generator),
        "parameters": torch.rand(num_trajectories, 2, generator=generator) * 1000 + 100,
        "mask": torch.rand(num_trajectories, *shape, generator=generator) > 0.3,
    }
    values["static"] *= values["mask"][..., None]
    values["forcing"] *= values["mask"][:, None, ..., None]
    return values


def frames() -> torch.Tensor:
    shape = (NUM_TRAJECTORIES, NUM_FRAMES, *GRID.shape, 3)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)) * known()["mask"][:, None, ..., None]


@pytest.fixture
def dataset() -> ArrayDataset:
    return ArrayDataset(frames(), PROBLEM, **known())


@pytest.fixture
def stored(dataset: ArrayDataset, tmp_path: Path):
    """The same data in a file."""
    writer = SplitWriter(tmp_path / "data" / "train.hdf5", Contents(PROBLEM, "train", NUM_TRAJECTORIES, NUM_FRAMES))
    writer.prepare()
    for batch in writer.pending(3):
        rows = list(batch)
        with writer.batch(batch) as output:
            output.write_mask(dataset.read(rows, part="mask").numpy())
            output.write_static(dataset.read(rows, part="static").numpy())
            output.write_parameters(dataset.read(rows, part="parameters").numpy())
            forcing = dataset.read(rows, part="forcing").numpy()
            for index, frame in enumerate(dataset.read(rows).unbind(1)):
                output.write(frame.numpy(), forcing[:, index])
    writer.finish()
    return open_dataset(tmp_path / "data")


def surrogate(**options) -> Surrogate:
    return build_surrogate(PROBLEM, marching_steps=2, **SIZES, **options)


def assert_same(found: Batch, trajectories: list[int], start: int, length: int) -> None:
    """``found`` holds these trajectories, and forcing from frame ``start`` on."""
    wanted = known()
    for name in ("static", "parameters", "mask"):
        assert torch.equal(getattr(found, name), wanted[name][trajectories]), name
    assert torch.equal(found.forcing, wanted["forcing"][trajectories, start : start + length])


def test_a_dataset_in_memory(dataset):
    window = dataset.window([2, 0], slice(1, 6))
    assert_same(window.known, [2, 0], 1, 5)
    assert torch.equal(window.frames, frames()[[2, 0], 1:6])
    batch = dataset.batch([3], start=4, num_frames=2)
    assert torch.equal(batch.context, frames()[[3], 4:6])
    assert_same(batch, [3], 4, 4)


def test_a_file_and_a_copy_of_it(dataset, stored, tmp_path):
    copy = open_dataset(convert(stored.paths[0], tmp_path / "copy"))
    for data in (stored, copy):
        assert data.problem == PROBLEM
        assert_same(data.window([1, 3], slice(2, 7)).known, [1, 3], 2, 5)
        ours = dataset.normalizer().to_dict()
        assert data.normalizer().to_dict().keys() == ours.keys()
        for name, values in data.normalizer().to_dict().items():
            assert values == pytest.approx(ours[name], rel=1e-5), name


def test_the_well_reads_our_parts(stored, dataset):
    well = pytest.importorskip("the_well.data")
    folder = str(stored.paths[0].parent)
    theirs = well.WellDataset(
        path=folder, include_filters=["train.hdf5"], n_steps_input=2, n_steps_output=1, use_normalization=False
    )[0]
    depth, mask = theirs["constant_fields"].unbind(-1)
    assert torch.equal(depth, known()["static"][0, ..., 0])
    assert torch.equal(mask, known()["mask"][0].float())
    assert torch.equal(theirs["constant_scalars"], known()["parameters"][0])


@pytest.mark.parametrize("kind", [ResidentFeed, StreamingFeed])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
def test_feeds(dataset, kind, storage):
    windows = Windows(NUM_TRAJECTORIES, NUM_FRAMES, 4)
    visits = Visits(windows, seed=0, batch_size=3)
    batches = kind(dataset, visits, CPU, storage).batches(1)
    for update in (1, 2, 3):
        found = next(batches)
        chosen = [windows[index] for index in visits.at(update)]
        for row, (trajectory, start) in enumerate(chosen):
            own = found.rows(slice(row, row + 1))
            wanted = dataset.window([trajectory], slice(start, start + 4))
            for part, expected in zip(own.known, wanted.known, strict=True):
                exact = part is None or part.dtype == torch.bool or part.ndim == 2
                assert part is expected is None or torch.equal(
                    part, expected if exact else expected.to(storage).float()
                )
            assert own.known.parameters.dtype == torch.float32
    batches.close()


def test_noise(dataset):
    window = dataset.window([0, 1], slice(0, 5))
    noisy = ContextNoise(0.1, 2, dataset.normalizer(), 0)(window, 1, range(2))
    assert_same(noisy.known, [0, 1], 0, 5)
    assert not torch.equal(noisy.frames[:, :2], window.frames[:, :2])
    assert torch.equal(noisy.frames[:, 2:], window.frames[:, 2:])


def test_augmentation_keeps_parameters():
    from dataclasses import replace

    from factformer.pdes import find_pde
    from factformer.training.feed.augmentation import Augmentation

    pde = find_pde("darcy_flow")
    problem = replace(pde.problem(7), parameters=("contrast",))
    values = torch.randn(3, 1, 7, 7, 1)
    data = ArrayDataset(values, problem, static=values[:, 0], parameters=torch.arange(3.0)[:, None])
    moved = Augmentation("darcy_flow", data, 0)(data.window([2, 0, 1]), 1, range(3))
    assert torch.equal(moved.known.parameters[:, 0], torch.tensor([2.0, 0.0, 1.0]))
    assert torch.equal(moved.known.static, moved.frames[:, 0])
    assert not torch.equal(moved.frames, data.read([2, 0, 1]))


class Recorder(Surrogate):
    """Remembers the batches it was called with."""

    def forward(self, batch, num_steps=None, grid=None):
        self.__dict__.setdefault("seen", []).append(batch)
        return super().forward(batch, num_steps, grid)


def recorder(dataset: ArrayDataset) -> Recorder:
    plain = surrogate(normalizer=dataset.normalizer())
    return Recorder(PROBLEM, plain.config, 2, plain.normalizer)


@pytest.mark.parametrize("protocol", ["latent_marching", "autoregressive"])
def test_protocols_move_the_forcing_along(dataset, protocol):
    spy = recorder(dataset)
    plan = {"marching_steps": 2, "pushforward": 1} if protocol == "latent_marching" else {"unroll": 2}
    built = build_protocol(parse_protocol({"name": protocol, **plan}), PROBLEM)
    window = dataset.window([1, 2], slice(3, 3 + built.window_length))
    built.predict(spy, window, plan)
    step = 2 if protocol == "latent_marching" else 1
    for call, batch in enumerate(spy.seen):
        assert_same(batch, [1, 2], 3 + call * step, batch.forcing.shape[1])
        assert batch.forcing.shape[1] >= 2 + step
    assert len(spy.seen) == 2


def parts_for(objective: Objective, accumulate: int = 1) -> StepParts:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    keep_inputs(fabric)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    return StepParts(
        fabric,
        fabric.setup_module(objective),
        fabric.setup_optimizers(optimizer),
        list(objective.parameters()),
        1.0,
        accumulate,
    )


@pytest.mark.parametrize("kind", ["plain", "accumulated", "captured"])
def test_training_steps(dataset, kind):
    spy = recorder(dataset)
    plan = {"marching_steps": 2, "pushforward": 0}
    objective = Objective(spy, build_protocol(parse_protocol(plan), PROBLEM))
    parts = parts_for(objective, accumulate=2 if kind == "accumulated" else 1)
    step = CapturedStep(objective, parts) if kind == "captured" else train_step
    step(parts, dataset.window([3, 0], slice(2, 6)), plan, 1e-3)
    assert_same(Batch.cat(spy.seen), [3, 0], 2, 4)


def test_coarse_windows_keep_every_part_on_the_same_points(dataset):
    window = dataset.window([0], slice(0, 3)).every(2)
    whole = dataset.window([0], slice(0, 3))
    assert torch.equal(window.known.static, whole.known.static[:, ::2, ::2])
    assert torch.equal(window.known.forcing, whole.known.forcing[:, :, ::2, ::2])
    assert torch.equal(window.known.mask, whole.known.mask[:, ::2, ::2])
    assert torch.equal(window.known.parameters, whole.known.parameters)


def test_validation(dataset):
    spy = recorder(dataset)
    validation = Validation(dataset, num_windows=2, device=CPU)
    validation.errors(Objective(spy, build_protocol(parse_protocol({"marching_steps": 2}), PROBLEM)))
    last = NUM_FRAMES - 5
    for calls, (trajectory, start) in zip((spy.seen[:2], spy.seen[2:]), ((0, 0), (2, last)), strict=True):
        for batch, step in zip(calls, (0, 2), strict=True):
            assert_same(batch, [trajectory], start + step, batch.forcing.shape[1])


def test_evaluation(dataset):
    spy = recorder(dataset)
    accuracy.evaluate(spy, dataset, num_starts=2, batch_size=4, timing=False, device="cpu")
    starts = accuracy.start_frames(spy, dataset, 3, 2)
    for start, batch in zip(starts, spy.seen[::2], strict=True):  # two calls each
        assert_same(batch, [0, 1, 2, 3], start, batch.forcing.shape[1])


def test_roll_out_by_batch_and_by_name(dataset):
    spy = recorder(dataset).eval()
    batch = dataset.batch([1], num_frames=5)
    values = known()
    by_name = {
        "static": {"depth": values["static"][[1], ..., 0]},
        "forcing": {"inflow": values["forcing"][[1], :7].numpy()},
        "parameters": {"reynolds": values["parameters"][1, 0].item(), "slope": values["parameters"][[1], 1]},
        "mask": values["mask"][1],
    }
    with torch.no_grad():
        whole = torch.stack(list(factformer.rollout(spy, batch, 5)))
        named = torch.stack(list(factformer.rollout(spy, batch.context, 5, **by_name)))
    assert torch.equal(whole, named)
    for call, seen in enumerate(spy.seen[:3]):
        assert_same(seen, [1], 2 * call, seen.forcing.shape[1])
    with pytest.raises(UserError, match="must cover 2 context and 6 predicted frames; got 7"):
        next(factformer.rollout(spy, batch, 6))


def test_prediction_from_a_file(stored):
    context = read_context(stored.paths[0], PROBLEM, 3, start=1)
    assert_same(context.batch, [0, 1, 2, 3], 1, 5)
    assert torch.equal(context.batch.context, frames()[:, 1:3])
    with pytest.raises(UserError, match="forcing for 9 frames"):
        read_context(stored.paths[0], PROBLEM, 8)


def test_bundles_hold_the_problem_and_its_statistics(dataset, tmp_path):
    ours = surrogate(normalizer=dataset.normalizer())
    path = factformer.bundle.save_bundle(ours, tmp_path / "bundle")
    loaded = factformer.load(path)
    assert loaded.problem == PROBLEM
    assert loaded.normalizer.to_dict() == dataset.normalizer().to_dict()
    batch = dataset.batch([0, 1], num_frames=2)
    with torch.no_grad():
        assert torch.equal(loaded(batch), ours.eval()(batch))


def test_fit_takes_every_part_by_name(caplog):
    values = known()
    named = {
        "static": {"depth": values["static"][..., 0].numpy()},
        "forcing": {"inflow": values["forcing"]},
        "parameters": {"reynolds": values["parameters"][:, 0], "slope": values["parameters"][:, 1]},
        "mask": values["mask"][0],
    }
    with caplog.at_level(logging.WARNING, "factformer"):
        fitted = factformer.fit(
            frames(),
            grid=GRID,
            frame_dt=0.1,
            fields={"u": 2, "p": 1},
            **named,
            valid_array={"frames": frames(), **named},
            num_context_frames=2,
            horizon=3,
            name="channel",
            updates=1,
            settings={f"model.{key}": value for key, value in SIZES.items()},
            progress=False,
        )
    assert fitted.problem == PROBLEM
    assert "parameters" not in caplog.text


def test_static_fields_and_forcing_reach_the_network(dataset):
    ours = surrogate(normalizer=dataset.normalizer()).eval()
    batch = dataset.batch([0], num_frames=2)
    with torch.no_grad():
        expected = ours(batch)
        assert not torch.allclose(ours(batch._replace(static=batch.static + 1)), expected)
        changed = batch.forcing.clone()
        changed[:, :2] += 1
        assert not torch.allclose(ours(batch._replace(forcing=changed)), expected)


SHARED = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import torch
from lightning_fabric import Fabric
import test_batch as here
from factformer.protocols import build_protocol, parse_protocol
from factformer.training.loop.machine import keep_inputs
from factformer.training.loop.objective import Objective
from factformer.training.loop.step import StepParts, train_step

def train_one_update():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed")
    fabric.launch()
    keep_inputs(fabric)
    torch.manual_seed(0)
    data = here.ArrayDataset(here.frames(), here.PROBLEM, **here.known())
    spy = here.recorder(data)
    plan = {"marching_steps": 2, "pushforward": 0}
    objective = Objective(spy, build_protocol(parse_protocol(plan), here.PROBLEM))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0)
    parts = StepParts(fabric, fabric.setup_module(objective), fabric.setup_optimizers(optimizer),
                      list(objective.parameters()), 1.0, 1)
    mine = [2 * fabric.global_rank, 2 * fabric.global_rank + 1]
    train_step(parts, data.window(mine, slice(1, 5)), plan, 1e-3)
    here.assert_same(spy.seen[0], mine, 1, 4)
    Path(sys.argv[2], f"{fabric.global_rank}.json").write_text(json.dumps(mine))

train_one_update()
torch.distributed.destroy_process_group()
os._exit(0)  # threads of the process group may end the interpreter with a signal after all is done
"""


def test_two_processes_get_their_own_rows(tmp_path):
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    command = [sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[0, 1], [2, 3]]


def test_batches_are_pytrees(dataset):
    from torch.utils._pytree import tree_map

    window = dataset.window([0, 1], slice(0, 4))
    doubled = tree_map(lambda part: part if part is None else part * 2, window)
    assert isinstance(doubled, Window) and isinstance(doubled.known, Batch)
    assert torch.equal(doubled.known.parameters, 2 * window.known.parameters)
    moved = window.known.to(torch.float64)
    assert moved.static.dtype == torch.float64 and moved.mask.dtype == torch.bool
    assert torch.equal(Batch.cat(list(window.batch(2).split(1))).context, window.frames[:, :2])


class Alone(torch.nn.Module):
    def __init__(self, inner: Surrogate) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.inner.predict(batch, 2, GRID)


def test_torch_export_takes_a_batch(dataset):
    ours = Alone(surrogate(normalizer=dataset.normalizer()).eval())
    batch = dataset.batch([0, 1], num_frames=2)
    with torch.no_grad():
        exported = torch.export.export(ours, (batch,), strict=False)
        torch.testing.assert_close(exported.module()(batch), ours(batch))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"static": None}, r"needs static fields depth \(1\); give static="),
        ({"parameters": None}, "needs parameters reynolds, slope"),
        ({"mask": None}, "needs a mask"),
        ({"parameters": torch.ones(1, 3)}, r"expected parameters \(batch, 2\)"),
        ({"static": torch.ones(1, 6, 5, 2)}, r"expected 1 channels: depth \(1\); got 2"),
        ({"static": torch.ones(1, 5, 5, 1)}, r"static is on a grid of \(5, 5\) points beside \(6, 5\)"),
        ({"static": torch.ones(2, 6, 5, 1)}, "static holds 2 samples beside 1"),
        ({"forcing": torch.ones(1, 3, 6, 5, 2)}, "forcing must cover 2 context and 2 predicted frames; got 3"),
        ({"mask": torch.ones(1, 6, 5)}, "a mask holds true and false"),
        ({"parameters": torch.full((1, 2), math.nan)}, "NaN or infinite"),
        ({"context": torch.ones(1, 3, 6, 5, 3)}, "expected 2 context frames, got 3"),
    ],
)
def test_what_does_not_fit_is_named_at_the_door(dataset, change, words):
    batch = dataset.batch([0], num_frames=2)._replace(**change)
    with pytest.raises(UserError, match=words):
        surrogate()(batch, 2)


def test_a_part_that_a_problem_does_not_have_is_refused():
    plain = Problem("plain", GRID, (Field("u"),))
    with pytest.raises(UserError, match="'plain' has no static; leave it out"):
        build_surrogate(plain, **SIZES)(Batch(torch.ones(1, 1, 6, 5, 1), static=torch.ones(1, 6, 5, 1)))


def test_a_bare_array_is_the_context_or_the_static_fields():
    steady = Problem("map", GRID, (Field("y"),), (Field("x"),), num_context_frames=0)
    values = np.ones((2, 6, 5, 1), np.float32)
    for given in (values, values[:, None], torch.as_tensor(values), {"x": values[..., 0]}):
        batch = Batch.of(steady, static=given) if isinstance(given, dict) else Batch.of(steady, given)
        assert batch.names == ("static",) and batch.static.shape == (2, 6, 5, 1)
    moving = Problem("flow", GRID, (Field("y"),))
    assert Batch.of(moving, values[:, None]).names == ("context",)


def test_parameters_that_a_step_needs_beside_it_are_asked_for():
    several = Problem("flow", GRID, (Field("y"),), parameters=("reynolds", "frame_dt"))
    context = torch.ones(1, 1, 6, 5, 1)
    ours = build_surrogate(several, **SIZES).eval()
    with pytest.raises(UserError, match="needs parameters reynolds, frame_dt; give parameters="):
        list(factformer.rollout(ours, context, 2, frame_dt=0.2))
    with pytest.raises(UserError, match="frame_dt= is given beside parameters that have it"):
        list(factformer.rollout(ours, context, 2, frame_dt=0.2, parameters={"reynolds": 300, "frame_dt": 0.1}))


def test_a_mask_stays_boolean_whatever_says_the_type(dataset):
    moved = dataset.batch([0], num_frames=2).to(torch.zeros(1, dtype=torch.float64))
    assert moved.mask.dtype == torch.bool and moved.context.dtype == torch.float64


def test_arrays_in_a_batch_and_empty_mappings_are_as_good_as_tensors_and_nothing():
    plain = Problem("plain", GRID, (Field("u"),))
    ours = build_surrogate(plain, **SIZES).eval()
    context = torch.randn(2, 1, 6, 5, 1)
    (expected,) = factformer.rollout(ours, context, 1)
    (found,) = factformer.rollout(ours, Batch(context.numpy()), 1, static={}, forcing={}, parameters={})
    assert torch.equal(found, expected)
    with pytest.raises(UserError, match="context of a batch must be a tensor, got ndarray; use"):
        Batch(context.numpy()).require(plain)


@pytest.mark.parametrize("parts", [{}, {"parameters": {"reynolds": np.zeros(0)}}])
def test_no_samples_are_refused(parts):
    problem = Problem("flow", GRID, (Field("y"),), parameters=tuple(parts.get("parameters", {})))
    with pytest.raises(UserError, match="holds no samples"):
        list(factformer.rollout(build_surrogate(problem, **SIZES).eval(), torch.ones(0, 1, 6, 5, 1), 2, **parts))


def test_frames_without_an_axis_of_samples_are_named_as_they_were_given(dataset):
    batch = dataset.batch([0], num_frames=2)
    parts = {name: getattr(batch, name) for name in ("static", "parameters", "mask")}
    frames = batch.context[0].repeat(2, 1, 1, 1)
    with pytest.raises(UserError, match=r"got a tensor of shape \(4, 6, 5, 3\)"):
        list(factformer.rollout(surrogate().eval(), frames, 2, forcing=batch.forcing[0], **parts))


def test_named_parameters_keep_the_digits_of_the_context():
    problem = Problem("flow", GRID, (Field("y"),), parameters=("drag", "frame_dt"))
    given = {"drag": torch.tensor([0.1, 0.2], dtype=torch.float64)}
    batch = Batch.of(problem, torch.ones(2, 1, 6, 5, 1, dtype=torch.float64), parameters=given)
    changed = batch.with_parameter(problem, "frame_dt", 0.3)
    assert torch.equal(changed.parameters[:, 0], given["drag"]) and float(changed.parameters[0, 1]) == 0.3
    assert Batch.of(problem, torch.ones(2, 1, 6, 5, 1), parameters=given).parameters.dtype == torch.float32


@pytest.mark.parametrize("num_frames", [1, 3])
def test_frames_that_are_not_finite_end_a_roll_out(num_frames):
    ours = build_surrogate(Problem("plain", GRID, (Field("u"),)), **SIZES).eval()
    with torch.no_grad():
        next(iter(ours.decoder.parameters())).fill_(math.inf)
    with pytest.raises(NonFinite, match="left the finite numbers by frame") as raised:
        list(factformer.rollout(ours, torch.ones(2, 1, 6, 5, 1), num_frames))
    assert raised.value.samples == (0, 1) and 1 <= raised.value.frame <= num_frames
