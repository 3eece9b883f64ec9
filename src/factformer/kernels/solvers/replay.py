"""Many small launches as one: on a GPU a time step is recorded once as a CUDA graph and then replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from factformer.kernels._triton.launching import can_warm_up, warm_up

Function = Callable[[Tensor], Tensor]


def replayed(step: Function, state: Tensor) -> Function:
    """``step`` for states like ``state``; on a CUDA device as a recorded graph, elsewhere itself.

    The replayed step keeps its state in one place and returns that place: use a result, or copy it, before the next
    step overwrites it.
    """
    if not state.is_cuda:
        return step
    place = state.clone()
    if can_warm_up():
        with warm_up():
            step(place)
    # A first run outside of the recording makes the plans of the transforms and their workspaces.
    stream = torch.cuda.Stream(state.device)
    stream.wait_stream(torch.cuda.current_stream(state.device))
    with torch.cuda.stream(stream):
        step(place)
    torch.cuda.current_stream(state.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads, which may be writing results of before, go on meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        place.copy_(step(place))

    def replay(current: Tensor, recorded: Function = step) -> Tensor:
        # The graph knows the addresses of the step's constants; ``recorded`` keeps them alive.
        if current.data_ptr() != place.data_ptr():
            place.copy_(current)
        graph.replay()
        return place

    return replay


def repeated(step: Function, state: Tensor, count: int, *, recorded: bool = True) -> Function:
    """``count`` steps, each `replayed`, for states like ``state``; steps that exchange with other processes are not
    ``recorded``."""
    once = replayed(step, state) if recorded else step

    def advance(current: Tensor) -> Tensor:
        for _ in range(count):
            current = once(current)
        return current

    return advance
