"""Counts one update and one prediction of an experiment: memory, arithmetic and what processes send.

The update is the one that training runs, on tensors that have shapes and no values. What is counted is plain PyTorch;
for the fused kernels in bfloat16 there is the formula of `factformer.kernels.estimates`.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from factformer._support.text import first_line
from factformer.batch import Batch, Window
from factformer.data.normalization import Normalizer
from factformer.engine import TABLE
from factformer.errors import UserError
from factformer.kernels.estimates import NUMBER, least_work, training_bytes
from factformer.nn.attention import FactorizedAttention
from factformer.nn.local_branch import LocalBranch
from factformer.parallel import collectives
from factformer.parallel.attaching import hold_part
from factformer.parallel.part import GridPart, cut_window
from factformer.problem import Problem
from factformer.protocols import BaseProtocol, Plan, build_protocol
from factformer.surrogate import Surrogate, build_surrogate
from factformer.training.experiment.assembly import check_batch, check_cut
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.preparation import needs_whole_frames
from factformer.training.feed.steps import with_step
from factformer.training.footprint.gpu_precision import GpuPrecision, backward
from factformer.training.footprint.live_memory import LiveMemory, rounded
from factformer.training.footprint.operations import CountOperations, Operations
from factformer.training.footprint.sharing import Share, gathered_bytes, largest_rank, shared_traffic
from factformer.training.loop.objective import Objective
from factformer.training.loop.state import build_optimizer, expected_moments


class NotCountableError(Exception):
    """A model that asks for the values of tensors, which are not there when it is counted."""


@dataclass(frozen=True)
class FusedWork:
    """The least that the fused kernels move and compute in an update, and how many layers and local branches do it."""

    num_bytes: float
    flops: float
    layers: int
    field_bytes: float
    """Of the fields of all local branches."""


@dataclass(frozen=True)
class Footprint:
    """What an update of the weights takes. Bytes are those of one device, the one with the largest part."""

    share: Share
    parameters: int
    part: tuple[int, ...]
    """Points of the grid that a device holds."""
    windows: int
    """Windows that a device works on at once."""
    weights: int
    optimizer: int
    """Moments of the optimiser, and the moving average of the weights where there is one."""
    exchange: int
    """Buffers in which processes send gradients and gather weights."""
    batch: int
    activations: int
    """The most that forward and backward pass hold at once, gradients included."""
    fused: int | None
    """Peak of training on the fused kernels, where they serve this experiment on a GPU."""
    inference: int
    """Peak of one call on one sample."""
    flops: int
    """Matrix products and convolutions of an update, all devices together."""
    sent: dict[str, int]
    """Bytes of the tensors that a device gives to each kind of exchange in an update."""
    operations: Operations
    """What a device does in an update in plain PyTorch, by the bytes and the arithmetic of an operation."""
    fused_work: FusedWork | None
    """What it does on the fused kernels, where they serve this experiment on a GPU."""

    @property
    def plain(self) -> int:
        """Peak of training in plain PyTorch."""
        return self.weights + self.optimizer + self.exchange + self.batch + self.activations

    @property
    def training(self) -> int:
        """Peak of training as it is executed."""
        return self.plain if self.fused is None else self.fused


def count(experiment: Experiment, problem: Problem, share: Share = Share()) -> Footprint:  # noqa: B008 - immutable
    """What the longest update of an experiment takes on data of ``problem``."""
    config = experiment.training
    check_batch(config.batch_size, share.groups, config.accumulate)
    protocol = build_protocol(experiment.protocol, trained_problem(experiment, problem))
    return count_update(experiment, protocol, share)


def count_update(experiment: Experiment, protocol: BaseProtocol, share: Share) -> Footprint:
    """`count` for a protocol and its problem."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    problem, steps = protocol.problem, protocol.steps_per_call
    normalizer = Normalizer.identity(problem)  # its numbers are looked at
    try:
        with mode:
            surrogate = build_surrogate(problem, experiment.model, marching_steps=steps, normalizer=normalizer)
        objective = Objective(surrogate, protocol, experiment.training.gradient_loss)
        rank = 0
        if share.domain > 1:
            check_cut(experiment)
            with share.process(rank):
                rank = largest_rank(hold_part(surrogate, share.groups, share.domain, "cpu"))
        with share.process(rank):
            part = hold_part(surrogate, share.groups, share.domain, "cpu") if share.domain > 1 else None
            with mode:
                return _count(experiment, share, objective, part)
    except UserError:
        raise
    except (RuntimeError, NotImplementedError) as error:  # all that tensors without values cannot do
        raise NotCountableError(first_line(error)) from error


def trained_problem(experiment: Experiment, problem: Problem) -> Problem:
    """The problem of the surrogate that an experiment trains on such data: its step in time may be another."""
    config = experiment.protocol
    return (with_step(problem) if config.several_steps else problem).with_stride(config.strides[0])


def _count(experiment: Experiment, share: Share, objective: Objective, part: GridPart | None) -> Footprint:
    config, surrogate, protocol = experiment.training, objective.surrogate, objective.protocol
    problem = protocol.problem
    optimizer = build_optimizer(surrogate, config)
    weights = [p for p in surrogate.parameters() if p.requires_grad]
    kept = [e for p in weights for e in expected_moments(optimizer, p).values()]
    state = sum(rounded(math.prod(e.shape) * e.dtype.itemsize) for e in kept)
    if config.ema_decay is not None:
        state += sum(rounded(p.nbytes) for p in weights)

    rows = config.batch_size // share.groups
    if part is None:
        window = blank_window(problem, rows, protocol.window_length)
    elif needs_whole_frames(experiment):  # they are read, and a part of them is seen
        window = cut_window(blank_window(problem, rows, protocol.window_length), part)
    else:
        window = blank_window(problem.with_grid(part), rows, protocol.window_length)
    fixed = LiveMemory([*objective.parameters(), *objective.buffers()]).now
    plan = protocol.whole_plan(0, 1.0)  # all kinds of calls fall due at update 0, and none grows after 1.0
    held, active, flops, sent, operations = _update(objective, window, plan, experiment, share)
    inference = _prediction(surrogate, experiment, share, part)

    brought, whole = held - fixed, sum(p.nbytes for p in weights)
    exchange = 0
    if share.strategy == "fsdp":
        exchange = gathered_bytes(objective)
        state, fixed = state // share.devices, fixed // share.devices
        active += whole // share.devices  # the part of the gradients that stays
    elif share.devices > 1:
        exchange = whole  # buckets beside the gradients
    size = rows // config.accumulate
    fused, fused_work = None, None
    # An optimiser reads weights, gradients and two moments, and writes all but the gradients.
    operations[7 * whole // (share.devices if share.strategy == "fsdp" else 1), 0] = 1.0
    if runs_fused(surrogate, plan, config.precision, share):
        others = brought - brought // config.accumulate  # windows that wait for their turn
        fused = training_bytes(surrogate, size, plan.get("marching_steps")) + others + state + exchange
        fused_work = fused_work_of(surrogate, size, plan, config.accumulate)
    return Footprint(
        share=share,
        parameters=surrogate.num_parameters,
        part=problem.grid.shape if part is None else part.shape,
        windows=size,
        weights=fixed,
        optimizer=state,
        exchange=exchange,
        batch=brought,
        activations=active,
        fused=fused,
        inference=inference,
        flops=flops * share.devices,
        sent=dict(sent + shared_traffic(objective, share)),
        operations=operations,
        fused_work=fused_work,
    )


def fused_work_of(surrogate: Surrogate, size: int, plan: Plan, times: int) -> FusedWork:
    """That of calls without gradients, and of the training step after them, ``times`` over."""
    steps = plan.get("marching_steps", surrogate.marching_steps)
    work, pushed = least_work(surrogate, size, steps), plan.get("pushforward", 0)
    num_bytes, flops = (
        times * (getattr(work["train"], key) + pushed * getattr(work["infer"], key)) for key in ("num_bytes", "flops")
    )
    branches = sum(isinstance(part, LocalBranch) for part in surrogate.modules())
    field = size * surrogate.latent_grid(surrogate.problem.grid).num_points * surrogate.config.dim * NUMBER
    return FusedWork(num_bytes, flops, times * surrogate.config.depth, float(times * branches * field))


def _update(
    objective: Objective, window: Window, plan: Plan, experiment: Experiment, share: Share
) -> tuple[int, int, int, Counter[str], Operations]:
    """Of forward and backward pass: bytes of weights and batch, others, arithmetic, bytes sent, operations."""
    config = experiment.training
    objective.train()
    size = len(window.frames) // config.accumulate
    hooks = []
    if share.strategy == "fsdp":  # a whole gradient is shared out as soon as it is there
        hooks = [p.register_post_accumulate_grad_hook(_forget_gradient) for p in objective.parameters()]
    before = Counter(collectives.sent_bytes)
    tensors = [*objective.parameters(), *objective.buffers(), window.frames, *window.known.tensors]
    counted = min(config.accumulate, 2)  # from the second part of a batch on there are gradients already
    arithmetic = FlopCounterMode(display=False)
    with LiveMemory(tensors) as memory, CountOperations() as done, arithmetic, number_formats(share):
        held = memory.now
        for index in range(counted):
            with autocast(config.precision):
                loss, terms = objective(window.rows(slice(index * size, (index + 1) * size)), plan)
            backward(loss)
            del loss, terms
    for hook in hooks:
        hook.remove()
    objective.zero_grad()
    times = config.accumulate / counted
    sent = {kind: round(times * (number - before[kind])) for kind, number in collectives.sent_bytes.items()}
    operations = {kind: times * number for kind, number in done.found.items()}
    return held, memory.peak - held, round(times * arithmetic.get_total_flops()), Counter(sent), operations


def _forget_gradient(weight: Tensor) -> None:
    weight.grad = None


def _prediction(surrogate: Surrogate, experiment: Experiment, share: Share, part: GridPart | None) -> int:
    """Peak of one call for one sample: weights, batch and fields."""
    problem = surrogate.problem
    length = problem.num_context_frames + surrogate.marching_steps
    window = blank_window(problem if part is None else problem.with_grid(part), 1, length)
    batch = window.batch(problem.num_context_frames)
    batch = batch.map(lambda values: values.clone())
    surrogate.eval()
    held = [*surrogate.parameters(), *surrogate.buffers(), *batch.tensors]
    with LiveMemory(held) as memory, torch.no_grad(), number_formats(share), autocast(experiment.training.precision):
        surrogate(batch)
    surrogate.train()
    peak: int = memory.peak
    return peak


def blank_window(problem: Problem, rows: int, length: int) -> Window:
    """Windows of zeros on the grid of ``problem``."""
    shape, known = problem.grid.shape, {}
    if problem.static:
        known["static"] = torch.zeros(rows, *shape, problem.num_static_channels)
    if problem.forcing:
        known["forcing"] = torch.zeros(rows, length, *shape, problem.num_forcing_channels)
    if problem.parameters:
        known["parameters"] = torch.ones(rows, len(problem.parameters))
    if problem.masked:
        known["mask"] = torch.ones(rows, *shape, dtype=torch.bool)
    frames = torch.zeros(rows, length if problem.num_context_frames else 1, *shape, problem.num_state_channels)
    return Window(frames, Batch(**known))


def runs_fused(surrogate: Surrogate, plan: Plan, precision: str, share: Share) -> bool:
    """Whether training on a GPU takes the fused kernels: factorized attention in bfloat16 on whole grids, one call."""
    config = surrogate.config
    attention = [part for part in surrogate.modules() if isinstance(part, FactorizedAttention)]
    fits = bool(attention) and all(TABLE["attention"].fits(part) for part in attention)
    single = plan.get("calls", 1) == plan.get("unroll", 1) == 1
    whole = share.domain == 1 and not config.checkpointing
    return share.gpu and fits and single and whole and precision == "bf16-mixed"


def number_formats(share: Share) -> AbstractContextManager[object]:
    """Those of the devices, for what is counted without them."""
    return GpuPrecision() if share.gpu else nullcontext()


def autocast(precision: str) -> AbstractContextManager[object]:
    """The autocast region of training, for tensors without values."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
