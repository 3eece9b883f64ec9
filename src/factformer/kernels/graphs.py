"""CUDA graphs: calls and training steps that repeat with the same shapes are recorded once and replayed.

A replay launches all kernels at once, so that small grids are not bound by the time Python takes to launch them.
The first call with new shapes runs as usual (it compiles kernels and fills the tables of the grid), the second is
recorded, all later ones are replayed. ``FACTFORMER_FUSED=off`` turns this off too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 2**20
"""Points of a batch above which a call is not recorded: launching is hidden there, and a record holds memory."""


def wanted(x: Tensor, num_points: int) -> bool:
    """Whether calls on ``x`` are recorded: on a CUDA device, not too large, not inside another recording."""
    if not x.is_cuda or num_points > LARGEST or os.environ.get("FACTFORMER_FUSED", "auto") == "off":
        return False
    return not (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())


def _signature(tensors: Sequence[Tensor]) -> tuple[Hashable, ...]:
    enabled = torch.is_autocast_enabled("cuda")
    precision = torch.get_autocast_dtype("cuda") if enabled else None
    return (precision, *((tuple(t.shape), t.dtype, t.device) for t in tensors))


def _places(module: nn.Module) -> tuple[int, ...]:
    """Where the weights lie. ``module.parameters()`` would take longer than a small grid's call on the device."""
    found, rest = [], [module]
    while rest:
        part = rest.pop()
        found += [p.data_ptr() for p in part._parameters.values() if p is not None]
        rest += [child for child in part._modules.values() if child is not None]
    return tuple(found)


def _uncached_autocast() -> contextlib.AbstractContextManager[object]:
    """The autocast region around us without its cache, whose casts would be missing from a record.

    Where there is none, a region that opens inside of the record has a cache of its own, as it has outside of one.
    """
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting() == 0:
        return contextlib.nullcontext()
    enabled = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False)


class _Record:
    """A recorded function of tensors: fixed places for its inputs and outputs."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor], pool: Any) -> None:
        self.inputs = [t.clone() for t in tensors]
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a record has memory of its own: what the calls before it left is not used again
        with recording(self.graph, pool), _uncached_autocast():
            self.outputs = function(*self.inputs)

    def replay(self, tensors: Sequence[Tensor]) -> None:
        for place, t in zip(self.inputs, tensors, strict=True):
            place.copy_(t)
        self.graph.replay()


_failed: list[torch.cuda.CUDAGraph] = []
"""Recordings that did not end: the allocator may still ask them whether an allocation is theirs."""


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Record what is launched in here into ``graph``; after a failure the device is as it was before.

    Only calls of this thread are restricted meanwhile: a thread that reads data may pin memory, which would spoil a
    recording that watches the whole process.
    """
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    except BaseException:
        torch.cuda.set_stream(stream)  # a recording that cannot be ended leaves its own stream in place
        _clean_up(graph, stream, pool)
        raise


def _clean_up(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> None:
    """After a recording that could not be ended, bring the allocator and the random generator out of it."""
    try:
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
    except RuntimeError:
        return  # it had been ended
    _failed.append(graph)
    torch._C._cuda_releasePool(stream.device_index, pool)
    # The generator is only brought out by the end of another recording.
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device=stream.device)


class CallGraphs:
    """Records and replays gradient-free calls of a module that give one tensor."""

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self.seen: set[Hashable] = set()
        self.refused: set[Hashable] = set()
        self.records: dict[Hashable, _Record] = {}
        self.pool: Any = None

    def __call__(self, module: nn.Module, key: Hashable, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """``function(*tensors)``; ``key`` says what else it depends on besides the shapes and the weights' places."""
        full = (key, module.training, _places(module), _signature(tensors))
        if full not in self.seen:
            self._room()
            self.seen.add(full)
            return function(*tensors)
        # A record made in inference mode could not be replayed outside of it.
        if full in self.refused:
            return function(*tensors)
        with torch.inference_mode(False), torch.no_grad():
            if full not in self.records:
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                try:
                    self.records[full] = _Record(function, tensors, self.pool)
                except RuntimeError:
                    # A model that asks the device for a value while it runs cannot be recorded: it runs as before.
                    self.refused.add(full)
                    self.pool = None
                    return function(*tensors)
            record = self.records[full]
            record.replay(tensors)
            # All records share their memory, so the result must leave it before the next one is replayed.
            result: Tensor = record.outputs.clone()
        return result

    def _room(self) -> None:
        if len(self.seen) >= self.capacity:
            self.seen.clear()
            self.refused.clear()
            self.records.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGraphs:
        return CallGraphs(self.capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        return CallGraphs, (self.capacity,)


class StepGraphs:
    """Records and replays training steps.

    ``compute(*tensors)`` gives the loss and detached terms to report. Each call fills the gradients of
    ``parameters`` anew (they need no zeroing) and returns loss and terms. ``finish``, if given, is part of the step:
    it moves the weights by the gradients, forgets these, and gives more terms.
    """

    def __init__(
        self,
        compute: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        parameters: Sequence[nn.Parameter],
        finish: Callable[[], dict[str, Tensor]] | None = None,
    ) -> None:
        self.compute = compute
        self.parameters = list(parameters)
        self.finish = finish
        self.clear()

    def clear(self) -> None:
        """Forget all records, as one must when tensors that they know by their place were replaced."""
        self.seen: set[Hashable] = set()
        self.refused: set[Hashable] = set()
        self.records: dict[Hashable, tuple[_Record, list[Tensor | None]]] = {}
        self.pool: Any = None

    def __call__(
        self, key: Hashable, *tensors: Tensor, num_points: int = 0, **options: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step; ``options`` go to ``compute`` and must be told apart by ``key``, like marching steps."""
        full = (key, _signature(tensors))
        if full not in self.seen or full in self.refused or not wanted(tensors[0], num_points):
            self.seen.add(full)
            return self._step(*tensors, **options)
        if full not in self.records:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            self._forget_gradients()
            try:
                record = _Record(lambda *t: self._step(*t, **options), tensors, self.pool)
            except RuntimeError:
                # Not recordable, or no room for a record: from now on this step runs as before. (Where a loss of the
                # same weights is still alive, so are its nodes, and they belong to another stream.)
                self.refused.add(full)
                self.pool = None
                return self._step(*tensors, **options)
            self.records[full] = (record, [p.grad for p in self.parameters])
        record, grads = self.records[full]
        record.replay(tensors)
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        loss, terms = record.outputs
        return loss.clone(), {name: term.clone() for name, term in terms.items()}

    def _step(self, *tensors: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        self._forget_gradients()
        loss, terms = self.compute(*tensors, **options)
        loss.backward()
        if self.finish is not None:
            terms = terms | self.finish()
        return loss.detach(), terms

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
