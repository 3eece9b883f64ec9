"""Warm-up: kernels are compiled ahead without running, once, and only where no hook would see the call."""

import threading

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
import triton
import triton.language as tl

from factformer.kernels import warmup
from factformer.kernels._triton.launch import launch, warm_up


@pytest.fixture
def launches(monkeypatch):
    """What is asked of Triton, in place of a launch: the name of a kernel and whether it was only compiled."""
    monkeypatch.setattr(warmup, "can_warm_up", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return []


class Kernel:
    """What `launch` uses of a kernel of Triton's."""

    def __init__(self, name, launches):
        self.name, self.launches = name, launches

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((self.name, False))

    def warmup(self, *args, grid, **options):
        self.launches.append((self.name, True))


def caller(launches, name="forward"):
    def call():
        launch(Kernel(name, launches), (1,))
        return torch.zeros(1)

    return call


def test_kernels_are_compiled_and_not_run(launches):
    module, call = nn.Linear(1, 1), caller(launches)
    warmup.compile_once(module, "sizes", call)
    call()
    assert launches == [("forward", True), ("forward", False)]


def test_a_kernel_of_tritons_writes_nothing_during_a_warm_up():
    @triton.jit
    def fill(target, value, SIZE: tl.constexpr):
        tl.store(target + tl.arange(0, SIZE), value)

    if not triton.knobs.runtime.interpret:
        pytest.skip("without a device kernels run under the interpreter alone")
    target = torch.zeros(4)
    with warm_up():
        launch(fill, (1,), target, 3.0, SIZE=4)
    assert target.tolist() == [0.0] * 4
    launch(fill, (1,), target, 3.0, SIZE=4)
    assert target.tolist() == [3.0] * 4


def test_only_before_the_first_call_of_its_sizes(launches):
    module, call = nn.Linear(1, 1), caller(launches)
    for key in ("small", "small", "large"):
        warmup.compile_once(module, key, call)
    with torch.no_grad():
        warmup.compile_once(module, "small", call)
    assert len(launches) == 3
    warmup.compile_once(nn.Linear(1, 1), "small", call)
    assert len(launches) == 4


def test_other_threads_launch_as_ever(launches):
    def call():
        thread = threading.Thread(target=caller(launches, "elsewhere"))
        thread.start()
        thread.join()
        return torch.zeros(1)

    warmup.compile_once(nn.Linear(1, 1), "sizes", call)
    assert launches == [("elsewhere", False)]


def test_kernels_of_the_gradient_are_compiled_in_the_same_thread(launches):
    module = nn.Linear(1, 1)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            caller(launches, "gradient")()
            return grad * 2

    warmup.compile_once(module, "sizes", lambda: Function.apply(module(torch.ones(1))))
    assert launches == [("gradient", True)]
    assert module.weight.grad is None


def test_no_warm_up_where_a_hook_would_see_the_call_twice(launches):
    module = nn.Sequential(nn.Linear(1, 1))
    module[0].register_forward_hook(lambda *_: None)
    warmup.compile_once(module, "sizes", caller(launches))
    assert not launches


def test_after_an_error_kernels_run_again(launches):
    def broken():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        warmup.compile_once(nn.Linear(1, 1), "sizes", broken)
    caller(launches)()
    assert launches == [("forward", False)]


def test_every_launch_goes_through_one_function():
    import re
    from pathlib import Path

    import factformer.kernels

    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(Path(factformer.kernels.__file__).parent.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\w\[\(?[^\]]*\]\(", line) and '"""' not in line and path.name != "launch.py"
    ]
    assert not found
