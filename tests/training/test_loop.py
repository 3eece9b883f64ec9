"""The loop: it learns, logs what it does, stops when asked, and notices when it goes astray."""

import itertools
import json
import os
import signal

import pytest
import torch
from small_waves import LATENT, tiny_experiment, wave_problem, waves

import factformer
from factformer.data.dataset import ArrayDataset
from factformer.errors import NonFinite, UserError
from factformer.protocols.latent_marching import marching_steps, pushforward_calls
from factformer.training.loop.clock import Clock
from factformer.training.loop.failures import Diverged, is_out_of_memory
from factformer.training.loop.optimizer.schedule import learning_rate_factor
from factformer.training.loop.train import train
from factformer.training.loop.validation import Validation, spread_windows
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.reporting import Reporter


def read_log(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class At(Reporter):
    """Does something when the log reaches an update."""

    def __init__(self, update, action):
        self.update, self.action = update, action

    def line(self, values, seconds_waiting):
        if values["update"] == self.update:
            self.action()


def test_logged_values_follow_their_formulas(datasets, tmp_path):
    experiment = tiny_experiment(updates=40, log_every=1)
    train(experiment, *datasets, folder=tmp_path / "run")
    config = experiment.training
    lines = read_log(tmp_path / "run")
    assert [line["update"] for line in lines] == list(range(1, 41))
    for line in lines:
        progress = (line["update"] - 1) / 40
        factor = learning_rate_factor(
            "one_cycle", progress, warmup=0.2, initial=config.initial_fraction, final=config.final_fraction
        )
        assert line["progress"] == pytest.approx(progress)
        assert line["learning_rate"] == pytest.approx(config.learning_rate * factor)
        assert line["marching_steps"] == marching_steps(progress, 2, LATENT["curriculum"])
        assert line["pushforward"] == pushforward_calls(line["update"], progress, 1, 0.4, 2)
        assert line["loss"] == pytest.approx(line["u"])
    assert {line["marching_steps"] for line in lines} == {1, 2}
    assert sum(line["pushforward"] for line in lines) == 12
    assert [line["update"] for line in lines if "validation" in line] == [20, 40]


def test_a_run_leaves_a_bundle_with_its_history(datasets, tmp_path):
    experiment = tiny_experiment(updates=12)
    outcome = train(experiment, *datasets, folder=tmp_path / "run", command="factformer train waves")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "checkpoints", "bundle", "environment.json"}
    loaded = factformer.load(tmp_path / "run" / "bundle")
    context = waves(2)[:, :3]
    with torch.no_grad():
        assert torch.equal(loaded(context, 2), outcome.surrogate(context, 2))
    provenance = loaded.provenance
    assert (provenance["seed"], provenance["dataset"]) == (0, datasets[0].fingerprint)
    assert provenance["command"] == "factformer train waves"
    assert provenance["metrics"]["validation"] == read_log(tmp_path / "run")[-1]["validation"]
    # The bundle holds the average of the weights, not the last ones.
    last = checkpoint.load(checkpoint.latest(tmp_path / "run" / "checkpoints")).tensors
    name = next(n for n, p in loaded.named_parameters() if p.ndim > 1)
    assert torch.equal(loaded.state_dict()[name], last[f"average.{name}"])
    assert not torch.equal(loaded.state_dict()[name], last[f"weights.{name}"])


def test_the_seed_decides_everything(datasets, tmp_path):
    logs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tiny_experiment(updates=8, log_every=1, seed=seed), *datasets, folder=tmp_path / name)
        logs.append([line["loss"] for line in read_log(tmp_path / name)])
    assert logs[0] == logs[1] != logs[2]


def test_accumulating_parts_of_a_batch_gives_the_gradient_of_the_whole(datasets, tmp_path):
    losses = []
    for parts in (1, 4):
        experiment = tiny_experiment(updates=10, log_every=1, batch_size=4, accumulate=parts)
        train(experiment, *datasets, folder=tmp_path / str(parts))
        losses.append([line["loss"] for line in read_log(tmp_path / str(parts))])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(UserError, match=r"multiple"):
        train(tiny_experiment(batch_size=4, accumulate=3), *datasets, folder=tmp_path / "bad")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_run_goes_on(datasets, tmp_path, number):
    before = signal.getsignal(number)
    reporter = At(14, lambda: os.kill(os.getpid(), number))
    experiment = tiny_experiment(updates=30)
    outcome = train(experiment, *datasets, folder=tmp_path / "run", reporter=reporter)
    assert (outcome.finished, outcome.update) == (False, 14)
    assert number.name in outcome.reason
    assert signal.getsignal(number) is before
    outcome = train(experiment, *datasets, folder=tmp_path / "run", resume=True)
    train(experiment, *datasets, folder=tmp_path / "straight")
    assert outcome.finished
    assert [line["loss"] for line in read_log(tmp_path / "run")] == [
        line["loss"] for line in read_log(tmp_path / "straight")
    ]


def test_a_time_limit_saves_and_stops(datasets, tmp_path):
    outcome = train(tiny_experiment(updates=10**6), *datasets, folder=tmp_path / "run", max_minutes=0.5 / 60)
    assert not outcome.finished
    assert "minutes are over" in outcome.reason
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == checkpoint.name_of(outcome.update)


def test_a_budget_stretches_the_whole_schedule_over_its_time(datasets, tmp_path):
    budget = 1.5
    experiment = tiny_experiment(budget_minutes=budget / 60, log_every=1, updates=1)
    outcome = train(experiment, *datasets, folder=tmp_path / "run")
    config, lines = experiment.training, read_log(tmp_path / "run")
    assert outcome.finished
    assert lines[-1]["update"] > 1  # the number of updates does not count
    for before, line in itertools.pairwise(lines):
        progress = line["progress"]
        # Progress is the time at the beginning of an update, between the ends of the last one and of this one.
        assert min(before["seconds"] / budget, 1) - 0.02 <= progress <= line["seconds"] / budget
        assert line["marching_steps"] == marching_steps(progress, 2, LATENT["curriculum"])
        factor = learning_rate_factor(
            "one_cycle", progress, warmup=0.2, initial=config.initial_fraction, final=config.final_fraction
        )
        assert line["learning_rate"] == pytest.approx(config.learning_rate * factor)
    assert lines[-1]["seconds"] >= budget


def test_what_a_budget_ends_with_is_validated(datasets, tmp_path):
    dataset, held_out = datasets
    experiment = tiny_experiment(budget_minutes=0.5 / 60, log_every=7, validate_every=7, updates=1)
    outcome = train(experiment, dataset, held_out, folder=tmp_path / "run")
    assert outcome.last["update"] == outcome.update and "validation" in outcome.last


def test_a_budget_counts_the_seconds_of_earlier_legs():
    clock = Clock(tiny_experiment(budget_minutes=1).training, torch.device("cpu"))
    clock.start(30.0)
    assert clock.progress(5, clock.seconds) == pytest.approx(0.5, abs=0.01)
    with clock.paused():
        paused = clock.seconds
        assert clock.seconds == paused
    assert clock.progress(10**6, 61.0) == 1.0


def poison(trainer_step, at):
    """A training step whose result explodes once the given update has been reached."""
    count = 0

    def step(parts, window, plan, learning_rate):
        nonlocal count
        count += 1
        losses = dict(trainer_step(parts, window, plan, learning_rate))
        if count == at:
            with torch.no_grad():
                parts.parameters[0].fill_(float("nan"))
        return losses

    return step


def test_nan_stops_with_the_last_good_checkpoint_named(datasets, tmp_path, monkeypatch):
    from factformer.training.loop import trainer

    monkeypatch.setattr(trainer, "train_step", poison(trainer.train_step, 25))
    with pytest.raises(Diverged, match=r"update-00000022"):
        train(tiny_experiment(updates=60), *datasets, folder=tmp_path / "run")
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "update-00000022"


def test_nan_rolls_back_and_halves_the_learning_rate_if_asked(datasets, tmp_path, monkeypatch):
    from factformer.training.loop import trainer

    monkeypatch.setattr(trainer, "UPDATES_TO_RISE_ANEW", 4)
    monkeypatch.setattr(trainer, "train_step", poison(trainer.train_step, 25))
    experiment = tiny_experiment(updates=60, on_divergence="halve", log_every=1, schedule="constant", warmup=0)
    outcome = train(experiment, *datasets, folder=tmp_path / "run")
    assert outcome.finished
    lines = read_log(tmp_path / "run")
    assert [line["update"] for line in lines] == list(range(1, 61))
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [3e-3] * 22 + [0.25 * 1.5e-3, 0.5 * 1.5e-3, 0.75 * 1.5e-3] + [1.5e-3] * 35
    )
    assert all(line["loss"] < 10 for line in lines)


def test_only_a_prediction_that_is_not_finite_counts_as_divergence(datasets, tmp_path, monkeypatch):
    from factformer.training.loop import trainer

    def failing(error):
        def step(*arguments):
            raise error

        return step

    monkeypatch.setattr(trainer, "train_step", failing(NonFinite(3, [0])))
    with pytest.raises(Diverged, match="no longer finite at update 1"):
        train(tiny_experiment(), *datasets, folder=tmp_path / "diverged")
    monkeypatch.setattr(trainer, "train_step", failing(UserError("another mistake")))
    with pytest.raises(UserError, match="another mistake"):
        train(tiny_experiment(), *datasets, folder=tmp_path / "mistaken")


def test_an_exploding_loss_counts_as_divergence(datasets, tmp_path):
    with pytest.raises(Diverged, match=r"training.learning_rate"):
        train(
            tiny_experiment(learning_rate=1e6, clip=None, log_every=1, explosion=50.0, warmup=0),
            *datasets,
            folder=tmp_path / "run",
        )


def test_one_run_is_never_written_over_another(datasets, tmp_path):
    folder = tmp_path / "run"
    train(tiny_experiment(updates=2), *datasets, folder=folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"--resume.*--overwrite"):
        train(tiny_experiment(updates=2), *datasets, folder=folder)
    train(tiny_experiment(updates=3), *datasets, folder=folder, overwrite=True)
    assert read_log(folder)[-1]["update"] == 3
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_checkpoint_of_other_data_or_another_model_is_refused(datasets, tmp_path):
    train(tiny_experiment(updates=2), *datasets, folder=tmp_path / "run")
    other = ArrayDataset(waves(3, first=3), wave_problem())
    with pytest.raises(UserError, match=r"another dataset"):
        train(tiny_experiment(updates=2), other, folder=tmp_path / "run", resume=True)
    bigger = tiny_experiment(updates=2).override(["model.dim=16"])
    with pytest.raises(UserError, match=r"another configuration: model\.dim"):
        train(bigger, datasets[0], folder=tmp_path / "run", resume=True)


def test_windows_that_do_not_fit_say_which_setting_is_too_long(tmp_path):
    short = ArrayDataset(waves(2, num_frames=6), wave_problem())
    with pytest.raises(UserError, match=r"7 frames.*protocol\.marching_steps"):
        train(tiny_experiment(), short, folder=tmp_path / "run")


def test_out_of_memory_names_the_knobs(datasets, tmp_path, monkeypatch):
    from factformer.training.loop import trainer

    def starved(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(trainer, "train_step", starved)
    with pytest.raises(UserError, match=r"training.accumulate=2.*training.batch_size=1.*model.checkpointing"):
        train(tiny_experiment(), *datasets, folder=tmp_path / "run")
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))


def test_a_disk_that_fills_up_is_said_so_and_the_run_can_go_on(datasets, tmp_path, monkeypatch):
    import errno

    real = checkpoint.flush

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    experiment = tiny_experiment(updates=30)
    reporter = At(14, lambda: monkeypatch.setattr(checkpoint, "flush", no_space))
    with pytest.raises(UserError, match=r"disk is full"):
        train(experiment, *datasets, folder=tmp_path / "run", reporter=reporter)
    monkeypatch.setattr(checkpoint, "flush", real)
    assert train(experiment, *datasets, folder=tmp_path / "run", resume=True).finished


@pytest.mark.parametrize("change", ["model.checkpointing=true", "data.residence=stream"])
def test_how_it_is_computed_does_not_change_what_is_learnt(datasets, tmp_path, change):
    experiment = tiny_experiment(updates=8, log_every=1)
    train(experiment, *datasets, folder=tmp_path / "plain")
    train(experiment.override([change]), *datasets, folder=tmp_path / "changed")
    losses = [[line["loss"] for line in read_log(tmp_path / name)] for name in ("plain", "changed")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_mixed_precision_keeps_float32_weights(datasets, tmp_path):
    outcome = train(tiny_experiment(updates=8, precision="bf16-mixed"), *datasets, folder=tmp_path / "run")
    assert all(p.dtype == torch.float32 for p in outcome.surrogate.parameters())
    assert outcome.last["loss"] < 2


def test_resume_and_overwrite_exclude_each_other(datasets, tmp_path):
    with pytest.raises(UserError, match="either"):
        train(tiny_experiment(), *datasets, folder=tmp_path / "run", resume=True, overwrite=True)


def test_a_validation_that_blows_up_is_null_and_never_the_best(datasets, tmp_path, monkeypatch):
    from factformer.training.loop.objective import Objective

    def explosive(self, context, num_frames):
        raise NonFinite(2, [0])

    monkeypatch.setattr(Objective, "roll_out", explosive)
    outcome = train(tiny_experiment(updates=4), *datasets, folder=tmp_path / "run")
    assert outcome.last["validation"] is None
    state = checkpoint.load(checkpoint.latest(tmp_path / "run" / "checkpoints")).state
    assert state["best"] is None


@pytest.mark.parametrize("ema", [None, 0.9])
def test_the_bundle_can_hold_the_best_weights_instead_of_the_last(datasets, tmp_path, monkeypatch, ema):
    errors = iter([0.5, 0.2, 0.4, 0.3] * 2)
    monkeypatch.setattr(Validation, "errors", lambda self, objective: {"u": next(errors)})
    settings = {"updates": 40, "validate_every": 10, "ema_decay": ema}
    folder, best = tmp_path / "run", checkpoint.name_of(20)
    shipped = train(tiny_experiment(ship="best", **settings), *datasets, folder=folder).surrogate
    last = train(tiny_experiment(**settings), *datasets, folder=tmp_path / "last").surrogate
    kept = checkpoint.load(folder / "checkpoints" / best).tensors
    for name, parameter in shipped.named_parameters():
        assert torch.equal(parameter, kept[f"{'weights' if ema is None else 'average'}.{name}"])
    assert not torch.equal(shipped.decoder.project.weight, last.decoder.project.weight)
    known = factformer.load(folder).provenance
    assert (known["shipped"], known["metrics"]["validation"]) == (best, 0.2)
    assert factformer.load(tmp_path / "last").provenance["shipped"] == "last"


def test_the_best_weights_need_something_to_be_told_by(datasets, tmp_path):
    with pytest.raises(UserError, match=r"training\.ship=best"):
        train(tiny_experiment(ship="best"), datasets[0], folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("count", "trajectories", "last_start"), [(8, 10, 134), (8, 3, 20), (6, 3, 1), (1, 4, 9), (5, 5, 0)]
)
def test_held_out_windows_are_spread_over_trajectories_and_time(count, trajectories, last_start):
    found = spread_windows(count, trajectories, last_start)
    assert len(set(found)) == count
    assert len({trajectory for trajectory, _ in found}) == min(count, trajectories)
    starts = [start for _, start in found]
    assert min(starts) == 0 and max(starts) == (last_start if count > 1 else 0)
