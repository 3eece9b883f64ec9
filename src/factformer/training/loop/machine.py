"""The machines of a run, through Lightning Fabric: device, precision, processes, and what they agree on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch import Tensor, nn

from factformer._support.silence import silenced
from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.models._backbone import Backbone
from factformer.nn.conditions import Modulation

DeviceKind = Literal["auto", "cpu", "cuda", "mps"]
StrategyName = Literal["auto", "ddp", "fsdp"]
FEW_PROCESSES = 16
"""So many processes may share the cores of any computer, to try out what several do."""


@dataclass(frozen=True)
class Machine:
    """``devices`` counts processes per node: CPU processes, or one per GPU. None takes one."""

    device: DeviceKind = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: StrategyName = "auto"
    domain: int = 1
    """Processes that share the grid of a sample; the others train on samples of their own."""

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("device", self.device, get_args(DeviceKind)),
            ("strategy", self.strategy, get_args(StrategyName)),
        ):
            if value not in choices:
                raise unknown_name(name, str(value), choices)

    def check(self) -> None:
        """Raise where the computer cannot give what is asked for."""
        self.check_counts()
        self._check_devices()

    def check_counts(self) -> None:
        """Raise where the numbers of processes do not go together."""
        if self.devices < 1 or self.num_nodes < 1:
            raise UserError(f"--devices and --num-nodes start at 1, got {self.devices} and {self.num_nodes}")
        if self.domain < 1 or self.num_processes % self.domain:
            raise UserError(
                f"--domain {self.domain} processes share a grid, so that the {self.num_processes} processes of "
                "--devices and --num-nodes must be a multiple of it"
            )
        if self.domain > 1 and self.strategy == "fsdp":
            raise UserError("--domain cuts the grid and --strategy fsdp the weights: use one of them")

    def _check_devices(self) -> None:
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device == "cuda" and available == 0:
            raise UserError("a GPU was asked for and there is none; use --device cpu or install torch with CUDA")
        if self.kind == "cuda" and self.devices > available:
            raise UserError(f"--devices {self.devices} asked for, this computer has {available} GPUs")
        if self.kind == "mps" and not torch.backends.mps.is_available():
            raise UserError("--device mps asked for, and this computer has none; use --device cpu")
        if self.kind == "mps" and self.num_processes > 1:
            raise UserError("--device mps trains in one process; leave out --devices and --num-nodes")
        cores = os.cpu_count() or 1
        if self.kind == "cpu" and self.devices > max(cores, FEW_PROCESSES):
            raise UserError(f"--devices {self.devices} asked for, this computer has {cores} cores")

    @property
    def kind(self) -> Literal["cpu", "cuda", "mps"]:
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    @property
    def num_processes(self) -> int:
        return self.devices * self.num_nodes


def start(machine: Machine, precision: str) -> Fabric:
    """Fabric with all processes running; from here on every line is run by each of them."""
    machine.check()
    strategy: Any = machine.strategy
    if strategy == "fsdp":
        strategy = ModelParallelStrategy(shard, data_parallel_size=machine.num_processes, tensor_parallel_size=1)
    with _silent_fabric():
        fabric = Fabric(
            accelerator=machine.kind,
            devices=machine.devices,
            num_nodes=machine.num_nodes,
            strategy=strategy,
            precision=precision,
        )
        if machine.num_processes > 1 or machine.strategy != "auto":
            fabric.launch()
    keep_inputs(fabric)
    return fabric


def _silent_fabric() -> AbstractContextManager[None]:
    """Without Fabric's advice and its announcements of what the configuration has said."""
    return silenced("lightning_fabric", logging.WARNING)


def keep_inputs(fabric: Fabric) -> None:
    """Leave batches in float32: in mixed precision Fabric would round them, and with them what a loss is held against.

    Autocast rounds what enters a product, which is after the frames have been normalised.
    """
    precision: Any = fabric.strategy.precision
    precision.convert_input = lambda data: data


def is_launched_process() -> bool:
    """Whether this process was started by another one of the same run."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0 or int(os.environ.get("NODE_RANK", "0")) > 0


def shard(module: nn.Module, mesh: Any) -> nn.Module:
    """Fully sharded data parallel (FSDP2): layers of the backbone are gathered as they run, the rest once."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for part in sharded_parts(module):
        fully_shard(part, mesh=mesh["data_parallel"])
    fully_shard(module, mesh=mesh["data_parallel"])
    register_fsdp_forward_method(module, "roll_out")
    return module


def sharded_parts(module: nn.Module) -> list[nn.Module]:
    """What is gathered by itself; a part that holds an earlier one does without its weights."""
    modulations = [part for part in module.modules() if isinstance(part, Modulation)]  # these run before their layer
    backbones = [part for part in module.modules() if isinstance(part, Backbone)]
    return [*modulations, *(layer for backbone in backbones for layer in _layers(backbone))]


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers in the lists of a backbone, and in lists of such lists."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if not isinstance(layer, nn.ModuleList))
            yield from _layers(child)


class Agreement:
    """What all processes must decide alike: the clock and whether to stop. One process needs no talk."""

    def __init__(self, fabric: Fabric) -> None:
        self.num_processes = fabric.world_size
        # Over the processors even where GPUs train: an answer from a GPU would hold up its queue.
        self.group = torch.distributed.new_group(backend="gloo") if self.num_processes > 1 else None

    def largest(self, *values: float) -> list[float]:
        """The largest of each value over all processes."""
        if self.group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self.group)
        return [float(value) for value in tensor]

    def gather(self, tensor: Tensor) -> Tensor:
        """The CPU tensors of all processes, stacked."""
        if self.group is None:
            return tensor[None]
        parts = [torch.empty_like(tensor) for _ in range(self.num_processes)]
        torch.distributed.all_gather(parts, tensor, group=self.group)
        return torch.stack(parts)


def whole(tensor: Tensor) -> Tensor:
    """A copy of the full tensor on the CPU; every process must ask for a sharded one."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().to("cpu", copy=True)


@torch.no_grad()
def assign(target: Tensor, values: Tensor) -> None:
    """Write the full tensor ``values`` into ``target``, or this process's shard of it."""
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        sharded = distribute_tensor(values.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]
        target.to_local().copy_(sharded.to_local())  # type: ignore[attr-defined]
    else:
        target.copy_(values)
