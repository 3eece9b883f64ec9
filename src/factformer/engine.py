"""How a surrogate is executed: plain, blocked, compiled or on fused kernels; recorded graphs, warm-up, working weights.

Layers are plain PyTorch. `attach` gives every stage of a network an implementation that asks `TABLE` at each call, with
the device, number format and sizes of that call:

- **fused**: Triton kernels, for bfloat16 on a GPU, in tiles for the shared memory it has (`device_limits`), where the
  layer fits them;
- **compiled**: ``torch.compile`` of the stage, for bfloat16 and float16 on a GPU where the kernels do not fit;
- **blocked**: a block of points at a time on a CPU (`factformer.kernels.blocked`), for calls without gradients in
  evaluation mode, in float32 and bfloat16, on `MANY` numbers and more;
- **plain**: everywhere else: training on a CPU, float32 on a GPU, inside ``torch.compile`` and ``torch.export``.

The trainer, the evaluation, `factformer.load` and the command line attach what they execute. A network that nobody has
attached runs plain. ``FACTFORMER_FUSED=off`` makes all calls plain, ``force`` uses the kernels wherever they fit, for
tests under Triton's interpreter; a ``mode`` given to `attach` wins over it.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from factformer._support.text import first_line
from factformer.batch import Batch
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.kernels import attention, blocked, encoder, graphs, local, march_decode, modulation, positions
from factformer.kernels._triton.limits import FULL, MEDIUM, SMALL, Limits, restricted
from factformer.kernels.blocked.products import number_format
from factformer.nn.attention import FactorizedAttention
from factformer.nn.conditions import Modulation
from factformer.nn.fourier_features import FourierFeatures
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.local_branch import LocalBranch
from factformer.nn.marching import LatentMarching
from factformer.nn.patches import Patches
from factformer.nn.stage import Network, Stage

if TYPE_CHECKING:
    from factformer.numerics.spectral import Spectrum
    from factformer.surrogate import Surrogate

Mode = Literal["auto", "off", "force", "compiled", "blocked"]
Way = Literal["plain", "blocked", "compiled", "fused"]

VARIABLE = "FACTFORMER_FUSED"

MANY = 2**18
"""Points of a sample times the `width` of a stage from which blocked stages run: 64 × 64 points, heads of 64 channels.
Less lies in the cache as it is, where the plain layers have fewer steps."""


@dataclass(frozen=True)
class Row:
    """One stage: its layer, kernels with the condition that they fit, those for a CPU, and whether compiling pays."""

    layer: type[Stage]
    width: Callable[..., int]
    """Channels that its work grows with, which decide whether it is worth blocks on a CPU."""
    fits: Callable[..., bool]
    fused: Callable[..., Tensor]
    blocked: ModuleType | None
    compiled: bool = True


TABLE: Mapping[str, Row] = {
    "encoder": Row(FrameEncoder, encoder.width, encoder.fits, encoder.run, blocked.encoder),
    "positions": Row(
        FourierFeatures, positions.width, positions.fits, positions.run, blocked.positions, compiled=False
    ),
    "modulation": Row(Modulation, modulation.width, modulation.fits, modulation.run, None, compiled=False),
    "attention": Row(FactorizedAttention, attention.width, attention.fits, attention.run, blocked.attention),
    "local": Row(LocalBranch, local.width, local.fits, local.run, blocked.local),
    "march_decode": Row(LatentMarching, march_decode.width, march_decode.fits, march_decode.run, blocked.marching),
}


def attach(
    module: nn.Module, mode: Mode | None = None, backend: str = "inductor", limits: Limits | None = None
) -> None:
    """Execute the stages of ``module``, and the calls of networks in it, as `TABLE` says from now on.

    Without a ``mode`` the environment is asked at each call, and what has an implementation already keeps it. The mode
    ``compiled`` compiles stages on any device, with a ``backend`` of ``torch.compile``. With ``limits`` the kernels
    keep to less than the device has, as on other cards (`factformer.kernels._triton.limits`). A subclass of one of our
    layers may compute something else and stays plain.
    """
    if mode is not None and mode not in get_args(Mode):
        raise UserError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    stages = {row.layer: name for name, row in TABLE.items()}
    for part in module.modules():
        if isinstance(part, Stage) and part.implementation is not None and mode is None:
            continue
        if isinstance(part, Network):
            part.implementation = CallExecution(mode)
        elif isinstance(part, Stage) and type(part) in stages:
            part.implementation = StageExecution(stages[type(part)], mode, backend, limits)


def detach(module: nn.Module) -> None:
    """Execute ``module`` as it is written in plain PyTorch from now on."""
    for part in module.modules():
        if isinstance(part, Stage):
            part.implementation = None


def environment_mode() -> Mode:
    """What ``FACTFORMER_FUSED`` says; nobody else reads it."""
    value = os.environ.get(VARIABLE, "auto")
    if value not in ("auto", "off", "force"):
        raise UserError(f"{VARIABLE} must be auto, off or force, got {value!r}")
    return value  # type: ignore[return-value]


def records_steps() -> bool:
    """Whether training steps may be recorded as graphs."""
    return environment_mode() != "off"


def solver_points(spectrum: Spectrum) -> tuple[int, ...] | None:
    """The points on which the solvers' kernels form products of such fields; ``None``: take the plain path.

    Of fields that are cut over processes no kernel serves the parts.
    """
    from factformer.kernels.solvers import product_shape

    mode = environment_mode()
    if mode == "off" or not spectrum.pencils.is_whole or not (mode == "force" or _has_triton(spectrum.device)):
        return None
    return product_shape(spectrum)


@dataclass(frozen=True)
class StageExecution:
    """Executes one stage of a network, chosen at each call."""

    stage: str
    mode: Mode | None = None
    backend: str = "inductor"
    limits: Limits | None = None

    def __call__(self, layer: Stage, *arguments: Any) -> Any:
        row = TABLE[self.stage]
        way, dtype = self.choice(layer, *arguments)
        if way == "fused":
            with restricted(self.limits or device_limits(_of_call(layer, *arguments).device) or FULL):
                return row.fused(layer, *arguments, dtype=dtype)
        if way == "blocked" and row.blocked is not None:
            return row.blocked.run(layer, *arguments, dtype=dtype)
        if way == "compiled":
            return _run_compiled(self.stage, self.backend, layer, *arguments)
        return layer.plain(*arguments)

    def choice(self, layer: Stage, *arguments: Any) -> tuple[Way, torch.dtype | None]:
        """How these arguments are executed, and the number format of fused or blocked stages."""
        row, mode = TABLE[self.stage], self.mode or environment_mode()
        if mode == "off" or torch.compiler.is_compiling():
            return "plain", None
        if any(isinstance(argument, Grid) and argument.cut_axes for argument in arguments):
            return "plain", None
        if mode == "compiled":
            return ("compiled" if row.compiled else "plain"), None
        x = _of_call(layer, *arguments)
        if mode == "blocked" or (mode == "auto" and x.device.type == "cpu"):
            if row.blocked is None:
                return "plain", None
            dtype = number_format(x) if _undisturbed(layer) else None
            many = mode == "blocked" or _points(layer, *arguments) * row.width(layer) >= MANY
            return ("blocked", dtype) if dtype and many and row.blocked.fits(layer, *arguments) else ("plain", None)
        dtype = fused_dtype(x, mode)
        if dtype is not None and row.fits(layer, *arguments):
            return "fused", dtype
        pays = mode == "auto" and row.compiled and _precision(x) in _LOW
        return ("compiled" if pays and _can_compile(x.device) else "plain"), None


def _of_call(layer: Stage, *arguments: Any) -> Tensor:
    """A tensor that says where a call is computed and in what."""
    x = next((a for a in arguments if isinstance(a, Tensor)), None)
    return next(layer.parameters()) if x is None else x


def _undisturbed(layer: Stage) -> bool:
    """Whether nobody looks at the operations of a call: gradients, graphs, counters, transforms of functions."""
    looking = torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack() > 0
    return not looking and not layer.training and torch._C._functorch.peek_interpreter_stack() is None


def _points(layer: Stage, *arguments: Any) -> int:
    """The latent points of a sample."""
    of_patch = math.prod(a.size for a in arguments if isinstance(layer, FrameEncoder) and isinstance(a, Patches))
    first_axis = 2 if isinstance(layer, FrameEncoder) else 1
    shapes = (a.shape[first_axis:-1] if isinstance(a, Tensor) else a.shape for a in arguments if hasattr(a, "shape"))
    return math.prod(next(shapes, ())) // of_patch


@dataclass
class CallExecution:
    """Executes calls of a whole network: replayed graphs where nothing needs a gradient, else `predict`."""

    mode: Mode | None = None
    graphs: graphs.CallGraphs = field(default_factory=graphs.CallGraphs)

    def __call__(self, surrogate: Surrogate, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
        recordable = not torch.is_grad_enabled() and (self.mode or environment_mode()) != "off" and not grid.cut_axes
        if not recordable or not graphs.wanted(batch.seen, batch.size * grid.num_points):
            return predict(surrogate, batch, num_steps, grid)

        def call(*tensors: Tensor) -> Tensor:
            return predict(surrogate, batch.filled(tensors), num_steps, grid)

        return self.graphs(surrogate, (num_steps, grid.key, batch.names), call, *batch.tensors)


def predict(surrogate: Surrogate, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
    """A call that is not recorded: weights are cast once for all stages, kernels compiled before the first call."""
    execution = surrogate.implementation
    mode = (execution.mode if isinstance(execution, CallExecution) else "off") or environment_mode()
    dtype = None
    if mode in ("auto", "force") and not torch.compiler.is_compiling():
        dtype = fused_dtype(batch.seen, mode)
    if dtype is None:
        return surrogate.predict(batch, num_steps, grid)
    from factformer.kernels._triton.weights import working_weights
    from factformer.kernels.warmup import compile_once

    def call() -> Tensor:
        with working_weights(surrogate, dtype):
            return surrogate.predict(batch, num_steps, grid)

    if batch.seen.is_cuda:
        compile_once(surrogate, (batch.names, *(tuple(t.shape) for t in batch.tensors), grid.key), call)
    return call()


def fused_dtype(x: Tensor, mode: Mode) -> torch.dtype | None:
    """The number format of the fused kernels for ``x``; ``None``: not with them."""
    if mode == "force":
        return x.dtype if x.dtype in (torch.float32, torch.bfloat16) else None
    if not x.is_cuda or device_limits(x.device) is None:
        return None
    return torch.bfloat16 if _precision(x) == torch.bfloat16 else None


_LOW = (torch.bfloat16, torch.float16)


def _precision(x: Tensor) -> torch.dtype | None:
    """The number format of products on ``x``, as the autocast region around the call says; ``None`` off a GPU."""
    if not x.is_cuda:
        return None
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and importlib.util.find_spec("triton") is not None


@functools.cache
def device_limits(device: torch.device) -> Limits | None:
    """What the device has for the tiles of the kernels; ``None``: too little, or no Triton."""
    if not _has_triton(device):
        return None
    properties = torch.cuda.get_device_properties(device)
    room = getattr(properties, "shared_memory_per_block_optin", None)
    if room is None:
        room = FULL.shared_memory if properties.major in (9, 10) else 0
    found = (known for known in (FULL, MEDIUM, SMALL) if int(room) >= known.shared_memory)
    return next(found, None) if properties.major >= 8 else None


@functools.cache
def _can_compile(device: torch.device) -> bool:
    """Whether ``torch.compile`` makes kernels for the device: it needs Triton and a GPU that Triton knows."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    return _has_triton(device) and is_dynamo_supported() and torch.cuda.get_device_capability(device)[0] >= 7


@functools.cache
def _compiled(stage: str, backend: str) -> Callable[..., Any]:
    """A stage compiled once for all its layers: weights are arguments, so layers of one size share a graph."""
    return torch.compile(TABLE[stage].layer.plain, backend=backend)


_failed: set[str] = set()
"""Stages that ``torch.compile`` could not compile in this process; they run plain."""
_has_tables: WeakKeyDictionary[Stage, set[Hashable]] = WeakKeyDictionary()


def _run_compiled(stage: str, backend: str, layer: Stage, *arguments: Any) -> Any:
    from torch._dynamo.exc import TorchDynamoException

    if stage in _failed:
        return layer.plain(*arguments)
    _make_tables(layer, *arguments)
    try:
        return _compiled(stage, backend)(layer, *arguments)
    except TorchDynamoException as error:
        _failed.add(stage)
        reason = first_line(error)
        warnings.warn(f"torch.compile failed for the stage {stage!r}, which runs uncompiled: {reason}", stacklevel=2)
        return layer.plain(*arguments)


def _make_tables(layer: Stage, *arguments: Any) -> None:
    """Fill the layer's tables of a new grid: made while compiling, they would cut its graph into pieces."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    grids = tuple(a.key for a in arguments if isinstance(a, Grid))
    key = (grids, torch.is_autocast_enabled(tensors[0].device.type), *((t.device, t.dtype) for t in tensors))
    known = _has_tables.setdefault(layer, set())
    if key not in known:
        known.add(key)
        with torch.no_grad():
            layer.plain(*arguments)
