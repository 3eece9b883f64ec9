"""Small pieces of work that do not wait for each other, on streams of their own.

In a recording the lanes become branches of the graph. The gradient of what is done in a lane runs in the same lane:
autograd keeps to the stream of the forward pass and waits where tensors cross. A training step that is not recorded
stays on one stream: several processes prepare the sums of their gradients on that one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor


@contextlib.contextmanager
def side_by_side(like: Tensor, number: int) -> Iterator[list[AbstractContextManager[object]]]:
    """A context for each of ``number`` pieces of work; afterwards the stream of before waits for all of them.

    The first piece stays on that stream; the others go first where both want a place on the device. Tensors that the
    pieces read must live until the end of the block.
    """
    if not like.is_cuda or (torch.is_grad_enabled() and not torch.cuda.is_current_stream_capturing()):
        yield [contextlib.nullcontext() for _ in range(number)]
        return
    streams = [_stream(like.device, lane) for lane in range(1, number)]
    current = torch.cuda.current_stream(like.device)
    for stream in streams:
        stream.wait_stream(current)
    yield [contextlib.nullcontext(), *(torch.cuda.stream(stream) for stream in streams)]
    for stream in streams:
        current.wait_stream(stream)


@functools.cache
def _stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
