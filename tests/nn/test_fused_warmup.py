"""Kernels compiled ahead: a rehearsal compiles without launching, once, and only where nobody is watching."""

import threading

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
from triton.runtime.jit import JITFunction

from factformer.nn.fused import warmup


@pytest.fixture
def launches(monkeypatch):
    """What is asked of Triton, in place of a launch."""
    seen = []

    def run(self, *args, grid, warmup, **kwargs):
        seen.append((self.__module__, warmup))

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(warmup, "able", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return seen


class Kernel(JITFunction):
    def __init__(self, module):
        self.__module__ = module


def call(module="factformer.nn.fused.some"):
    Kernel(module)[(1,)]()
    return torch.zeros(1)


def test_kernels_are_compiled_and_not_run(launches):
    module = nn.Linear(1, 1)
    warmup.compile_once(module, "sizes", call)
    call()
    assert launches == [("factformer.nn.fused.some", True), ("factformer.nn.fused.some", False)]


def test_only_before_the_first_call_of_its_sizes(launches):
    module = nn.Linear(1, 1)
    for key in ("small", "small", "large"):
        warmup.compile_once(module, key, call)
    with torch.no_grad():
        warmup.compile_once(module, "small", call)
    assert len(launches) == 3
    warmup.compile_once(nn.Linear(1, 1), "small", call)
    assert len(launches) == 4


def test_other_threads_and_other_libraries_launch_as_ever(launches):
    def rehearsed():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return call("another_library")

    warmup.compile_once(nn.Linear(1, 1), "sizes", rehearsed)
    assert launches == [("factformer.nn.fused.some", False), ("another_library", False)]


def test_gradients_are_rehearsed_in_the_same_thread(launches):
    module = nn.Linear(1, 1)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            call("factformer.nn.fused.gradient")
            return grad * 2

    warmup.compile_once(module, "sizes", lambda: Function.apply(module(torch.ones(1))))
    assert launches == [("factformer.nn.fused.gradient", True)]
    assert module.weight.grad is None


def test_no_rehearsal_before_an_audience(launches):
    module = nn.Sequential(nn.Linear(1, 1))
    module[0].register_forward_hook(lambda *_: None)
    warmup.compile_once(module, "sizes", call)
    assert not launches


def test_after_an_error_kernels_run_again(launches):
    def broken():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        warmup.compile_once(nn.Linear(1, 1), "sizes", broken)
    call()
    assert launches == [("factformer.nn.fused.some", False)]
