"""The state of a run: what a checkpoint holds and a resumed run starts from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from factformer.data.normalization import migrate_state
from factformer.errors import UserError
from factformer.surrogate import Surrogate
from factformer.training.experiment.config import TrainingConfig
from factformer.training.loop.arrival import Expected, check_tensors
from factformer.training.loop.machine import Agreement, assign, whole
from factformer.training.loop.optimizer.ema import WeightAverage
from factformer.training.loop.optimizer.muon import Muon, layer_matrices
from factformer.training.runfolder.checkpoint import NAME, Snapshot, corrupted

Count = Annotated[int, Field(strict=True, ge=0)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass
class Counters:
    """Where the run stands."""

    update: Count = 0
    """Updates done; also the position in the data, whose order is a function of it."""
    seconds: Finite = 0.0
    """Seconds of training, over all processes that the run was resumed in."""
    attempt: Count = 0
    """Roll-backs so far; each halves the learning rate."""
    attempt_began: Count = 0
    """Updates done when the last roll-back was over: from there the learning rate rises anew."""
    lowest_loss: Finite | None = None
    best: Annotated[str, Field(strict=True, pattern=f"^{NAME.pattern}$")] | None = None
    """Name of the checkpoint with the lowest error on held-out windows, and that error."""
    best_error: Finite | None = None
    last: dict[str, Any] = field(default_factory=dict)
    """The latest logged values."""
    tally_count: Count = 0
    """Updates since the last line of the log, whose losses are summed up."""
    num_tensors: Count | None = None
    """Tensors of the checkpoint: which weights have moments yet is not known otherwise."""

    @classmethod
    def read(cls, path: Path, state: Mapping[str, Any]) -> Counters:
        """The counters of the checkpoint ``path``."""
        known = {name: value for name, value in state.items() if name in cls.__dataclass_fields__}
        try:
            return TypeAdapter(cls).validate_python(known)
        except ValidationError as error:
            item = error.errors()[0]
            raise corrupted(path, f"{'.'.join(map(str, item['loc']))}: {item['msg']}") from None


class Tally:
    """Sums of losses on the device since the last line of the log, so that no update waits for a number."""

    def __init__(self, names: list[str], device: torch.device) -> None:
        self.names = ["loss", *names, "gradient_norm"]
        self.sums = torch.zeros(len(self.names), device=device)
        self.count = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        self.sums += torch.stack([values[name].detach().float() for name in self.names])
        self.count += 1

    def combine(self, fabric: Fabric) -> None:
        """The same sums in every process: the mean over all of them."""
        if fabric.world_size > 1:
            self.sums = fabric.all_reduce(self.sums, reduce_op="mean")

    def means(self) -> dict[str, float]:
        values = (self.sums / max(self.count, 1)).tolist()
        return dict(zip(self.names, values, strict=True))

    def reset(self) -> None:
        self.sums.zero_()
        self.count = 0


def build_optimizer(surrogate: Surrogate, config: TrainingConfig) -> Optimizer:
    """AdamW, Adam with its weight decay as a penalty, or Muon; fused where the parameters are on a GPU."""
    if config.optimizer == "muon":
        matrices = layer_matrices(surrogate.backbone)
        trained = [p for p in surrogate.parameters() if p.requires_grad]
        if any(hasattr(p, "full_tensor") for p in trained):
            raise UserError("training.optimizer=muon needs whole matrices: use --strategy ddp, or another optimizer")
        return Muon(trained, matrices, lr=config.learning_rate, weight_decay=config.weight_decay)
    kind = AdamW if config.optimizer == "adamw" else Adam
    parameters = [p for p in surrogate.parameters() if p.requires_grad]
    fused = all(p.is_cuda for p in parameters)
    return kind(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused or None)


def expected_moments(optimizer: Optimizer, parameter: Tensor) -> dict[str, Expected]:
    """What an optimiser keeps of one weight."""
    count, like = Expected(torch.float32, ()), Expected.like(parameter)
    if not isinstance(optimizer, Muon):
        return {"step": count, "exp_avg": like, "exp_avg_sq": like}
    if id(parameter) in optimizer.chosen:
        return {"momentum": like}
    return {"count": count, "mean": like, "square": like}


class RunState:
    """Weights, their average, optimiser, counters and random generators, to and from a `Snapshot`."""

    def __init__(
        self,
        surrogate: Surrogate,
        optimizer: Optimizer,
        average: WeightAverage | None,
        tally: Tally,
        agreement: Agreement,
    ) -> None:
        self.surrogate = surrogate
        self.optimizer = optimizer
        self.average = average
        self.tally = tally
        self.agreement = agreement
        self.counters = Counters()

    def snapshot(self, identity: Mapping[str, Any], metrics: str) -> Snapshot:
        """A copy of everything on the CPU; all processes take part."""
        tensors = {f"weights.{name}": whole(t) for name, t in self.surrogate.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": whole(t) for name, t in self.average.average.items()}
        for name, parameter in self._trained().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}/{key}"] = whole(value)
        tensors["tally"] = whole(self.tally.sums)
        generators = _generator_states()
        tensors |= {f"random.{name}": self.agreement.gather(state) for name, state in generators.items()}
        self.counters.tally_count, self.counters.num_tensors = self.tally.count, len(tensors)
        return Snapshot(tensors, {**asdict(self.counters), **identity}, metrics)

    def restore(self, path: Path, snapshot: Snapshot, rank: int = 0) -> None:
        """Continue exactly where the snapshot, that of the checkpoint ``path``, was taken."""
        counters = Counters.read(path, snapshot.state)
        tensors = dict(snapshot.tensors)
        if counters.num_tensors not in (None, len(tensors)):  # older versions wrote none
            raise corrupted(path, f"{len(tensors)} tensors of {counters.num_tensors} are there")
        migrate_state(tensors, self.surrogate.normalizer, "weights.normalizer.")
        self.check(path, tensors)
        for name, target in self.surrogate.state_dict().items():
            assign(target, tensors[f"weights.{name}"])
        if self.average is not None:
            for name, target in self.average.average.items():
                assign(target, tensors[f"average.{name}"])
        self._restore_optimizer(tensors)
        self.tally.sums.copy_(tensors["tally"])
        self.counters, self.tally.count = counters, counters.tally_count
        saved = {n.removeprefix("random."): t for n, t in tensors.items() if n.startswith("random.")}
        try:
            # A run that is resumed with more processes than it began with has no state for the new ones.
            _set_generator_states({name: states[rank % len(states)].clone() for name, states in saved.items()})
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise corrupted(path, f"the state of a random generator is damaged: {error}") from None

    def check(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Raise where the tensors of the checkpoint ``path`` are not those of this run."""
        required = {f"weights.{name}": Expected.like(t) for name, t in self.surrogate.state_dict().items()}
        if self.average is not None:
            required |= {f"average.{name}": Expected.like(t) for name, t in self.average.average.items()}
        required["tally"] = Expected.like(self.tally.sums)
        here = {f"random.{name}": Expected.like(t, per_process=True) for name, t in _generator_states().items()}
        on_gpu = {"random.cuda": here.pop("random.cuda", Expected(torch.uint8, (16,), per_process=True))}
        # A weight has no moments before its first gradient.
        moments = [
            {f"optimizer.{name}/{key}": like for key, like in expected_moments(self.optimizer, parameter).items()}
            for name, parameter in self._trained().items()
        ]
        check_tensors(path, tensors, required | here, [on_gpu, *moments])

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.surrogate.named_parameters() if p.requires_grad}

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        described = self.optimizer.state_dict()
        described["state"] = {}
        for index, (name, parameter) in enumerate(self._trained().items()):
            prefix = f"optimizer.{name}/"
            entry: dict[str, Tensor] = {}
            for key, value in tensors.items():
                if key.startswith(prefix):
                    full = value.clone()
                    if full.shape == parameter.shape and full.ndim:
                        target = torch.zeros_like(parameter)
                        assign(target, full)
                        full = target.detach()
                    entry[key.removeprefix(prefix)] = full
            if entry:
                described["state"][index] = entry
        self.optimizer.load_state_dict(described)


def shipped(snapshot: Snapshot) -> dict[str, Tensor]:
    """The weights of a snapshot as a bundle holds them: their average, where there is one."""
    found: dict[str, Tensor] = {}
    for prefix in ("weights.", "average."):
        found |= {n.removeprefix(prefix): t for n, t in snapshot.tensors.items() if n.startswith(prefix)}
    return found


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Global random generators that start from ``seed``, and are the caller's again afterwards."""
    callers = _generator_states()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        _set_generator_states(callers)


def _generator_states() -> dict[str, Tensor]:
    """The states of all global random generators as bytes."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    _, keys, position, has_gauss, cached = numpy_state
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_generator_states(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    version, *internal = states["python"].tolist()
    present, gauss = states["python_gauss"].tolist()
    random.setstate((version, tuple(internal), gauss if present else None))
    *keys, position, has_gauss = states["numpy"].tolist()
    cached = float(states["numpy_gauss"])
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
