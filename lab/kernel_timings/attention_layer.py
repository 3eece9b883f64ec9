"""Kernels of one factorized-attention layer on a GPU: correctness in bfloat16, then time against the bytes they move.

python -m lab.kernel_timings.attention_layer --check              fused against plain, odd sizes, both against float64
python -m lab.kernel_timings.attention_layer --cases 256 128 box  every kernel of one layer, forward, then backward
python -m lab.kernel_timings.attention_layer --variants           other tiles of the largest kernels
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import math
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from factformer import Grid, engine
from factformer.nn import FactorizedAttention, KernelOptions

BANDWIDTH = 4.3e12
"""Bytes per second that a copy reaches on an H200."""


class Case(NamedTuple):
    """A layer and the batch it is called with."""

    grid: tuple[int, ...]
    batch: int
    heads: int
    kernel_dim: int
    periodic: bool = True
    dim: int = 128
    head_dim: int = 64

    def make(self, batch: int | None = None) -> tuple[FactorizedAttention, Grid, Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        grid = Grid(self.grid, 2 * math.pi, self.periodic)
        layer = FactorizedAttention(
            len(self.grid), self.dim, self.heads, self.head_dim, self.kernel_dim, KernelOptions()
        ).cuda()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        shape = (batch or self.batch, *self.grid, self.dim)
        return layer, grid, *(torch.randn(*s, device="cuda") for s in (shape, shape[1:], shape))

    @property
    def unit(self) -> float:
        """Bytes of a field of one head in bfloat16."""
        return 2.0 * self.batch * math.prod(self.grid) * self.head_dim


CASES = {
    "256": Case((256, 256), 10, 8, 128),
    "128": Case((128, 128), 4, 8, 128),
    "box": Case((64, 64, 64), 4, 6, 192),
    "64": Case((64, 64), 32, 8, 128),
}
CHECKS = {
    "plane": Case((40, 36), 2, 8, 128),
    "wide plane": Case((200, 150), 1, 4, 128),
    "bounded plane": Case((33, 130), 2, 3, 64, periodic=False),
    "box": Case((20, 17, 24), 1, 6, 192),
    "line": Case((300,), 3, 8, 64),
    "whole tiles": Case((256, 128), 2, 8, 128),
    "narrow": Case((16, 16), 2, 4, 16, dim=32, head_dim=16),
    "narrow box": Case((6, 20, 9), 3, 3, 24, periodic=False, dim=48, head_dim=24),
}


def step(
    layer: FactorizedAttention, grid: Grid, field: Tensor, encoding: Tensor, probe: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Result and gradients of one layer."""
    leaves = [x.to(dtype).requires_grad_() for x in (field, encoding)]
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = layer.add_to(leaves[0], leaves[1], grid)
    grads = torch.autograd.grad(result, [*leaves, *layer.parameters()], probe.to(result.dtype))
    return [result, *grads]


def check(name: str, case: Case) -> None:
    layer, grid, *inputs = case.make()
    inputs = [x.bfloat16().float() for x in inputs]
    names = ["result", "field", "encoding", *(n for n, _ in layer.named_parameters())]
    exact = step(copy.deepcopy(layer).double(), grid, *inputs, torch.float64)
    plain = step(layer, grid, *inputs, torch.bfloat16)
    engine.attach(layer, "force")  # narrow layers too
    ours = step(layer, grid, *inputs, torch.bfloat16)
    for got, label in ((ours, "fused"), (plain, "plain")):
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, exact, strict=True)]
        flat = [torch.cat([x.double().flatten() for x in part[3:]]) for part in (got, exact)]
        worst = sorted(zip(errors[1:], names[1:], strict=True), reverse=True)[:3]
        print(
            f"{name:14} {label}: forward {errors[0]:.2e} field {errors[1]:.2e} encoding {errors[2]:.2e} "
            f"weights {float((flat[0] - flat[1]).norm() / flat[1].norm()):.2e}  worst "
            + ", ".join(f"{n} {e:.1e}" for e, n in worst),
            flush=True,
        )


def durations(call: Callable[[], Any], repeats: int = 5) -> list[tuple[str, float]]:
    """Name and median microseconds of every kernel of a call, in order of launch."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    each = len(events) // repeats
    if each * repeats != len(events):
        found = defaultdict(list)
        for e in events:
            found[e.name].append(e.time_range.elapsed_us())
        return [(f"{n} ×{len(t) / repeats:.1f}", sum(t) / repeats) for n, t in found.items()]
    return [
        (events[k].name, statistics.median(events[k + r * each].time_range.elapsed_us() for r in range(repeats)))
        for k in range(each)
    ]


def profile(name: str, case: Case) -> None:
    layer, grid, *inputs = case.make()
    engine.attach(layer, "force")
    inputs = [x.bfloat16() for x in inputs]
    rows = durations(lambda: step(layer, grid, *inputs, torch.bfloat16))
    print(f"{name}: {sum(t for _, t in rows) / 1e3:.3f} ms in {len(rows)} kernels, one layer forward and backward")
    for kernel, time_ in rows:
        if time_ > 3.0:
            print(f"  {time_:8.1f} us  {kernel[:110]}")
    small = [t for _, t in rows if t <= 3.0]
    print(f"  {sum(small):8.1f} us  {len(small)} kernels of at most 3 us", flush=True)


def variants(case: Case, batch: int) -> dict[str, tuple[float, Callable[[], Any]]]:
    """Largest kernels with other tiles: bytes over one head of values, and the call."""
    from factformer.kernels._triton.geometry import Tiling
    from factformer.kernels.attention import axis_kernel as a
    from factformer.kernels.attention import contraction as c
    from factformer.kernels.attention import contraction_backward as k
    from factformer.kernels.attention import output as o
    from factformer.kernels.attention import prenorm as p

    heads, size = case.heads, case.grid[0]
    calls: dict[str, tuple[float, Callable[[], Any]]] = {}

    def add(label: str, volume: float, module: Any, name: str, value: Any, call: Callable[[], Any]) -> None:
        def run() -> Any:
            with mock.patch.object(module, name, return_value=value):
                return call()

        calls[label] = (volume, run)

    torch.manual_seed(0)
    values = torch.randn(batch, *case.grid, heads, case.head_dim, device="cuda", dtype=torch.bfloat16)
    matrix = torch.randn(batch, heads, size, size, device="cuda", dtype=torch.bfloat16)
    last = len(case.grid) - 1
    grads = torch.randn_like(values)
    if size > 128:
        plans = {f"registers 128 rows s{s}": c.Plan(Tiling(128, 1, 4, s), True, 2, 2) for s in (2, 3)}
    elif size > 64:
        plans = {f"w{w} s{s}": c.Plan(Tiling(128, 1, w, s), True, 1, r) for w, s, r in ((8, 3, 2), (4, 3, 2))}
    else:
        plans = {f"w4 s{s} r{r}": c.Plan(Tiling(64, 1, 4, s), True, 1, r) for s, r in ((6, 3), (8, 2))}
    for label, plan in plans.items():
        for axis in (0, last):
            add(
                f"contract {label} axis {axis}",
                2 * heads,
                c,
                "contraction_plan",
                plan,
                lambda axis=axis: c.contract_into(matrix, values, axis),
            )
        add(
            f"contract {label} back",
            2 * heads,
            c,
            "contraction_plan",
            plan,
            lambda: c.contract_into(matrix.transpose(-1, -2), values, last),
        )
        add(
            f"contract {label} statistics",
            2 * heads,
            c,
            "contraction_plan",
            plan,
            lambda: c.contract_into(matrix, values, last, eps=1e-6),
        )
    tilings = [Tiling(256, 1, 8, 4), Tiling(256, 1, 8, 3), Tiling(128, 1, 8, 4)] if size > 128 else []
    for tiling in tilings:
        for axis in (0, last):
            add(
                f"kernel gradient {tuple(tiling)} axis {axis}",
                2 * heads,
                k,
                "gradient_tiling",
                tiling,
                lambda axis=axis: k.kernel_gradient(grads, values, axis, torch.bfloat16),
            )
    cuts = [(8, 3, 1)] if size > 128 else [(8, 3, 1), (8, 2, 2)] if size > 64 else [(4, 3, 3), (4, 4, 2)]
    for warps, stages, resident in cuts:
        for axis in (0, last):
            add(
                f"joint w{warps} s{stages} r{resident} axis {axis}",
                3 * heads,
                k,
                "joint_tiling",
                (Tiling(size, 1, warps, stages), resident),
                lambda axis=axis: k.joint_gradient(matrix, grads, values, axis, torch.bfloat16),
            )
    layer, grid, *_ = case.make(batch=1)
    mean = torch.randn(batch, size, case.dim, device="cuda", requires_grad=True)
    axis_kernel = layer.axes()[0]

    def axial() -> Tensor:
        return a.axial_operators(axis_kernel, mean, grid, torch.bfloat16)[0]

    for cut in ((16, 8), (16, 4), (16, 16)):
        add(f"phi {cut}", 0.0, a, "phi_tiling", cut, axial)
    for cut in ((64, 4), (64, 8), (128, 8), (128, 4)) if size >= 128 else ((64, 4), (64, 8), (32, 4)):
        add(f"operator {cut}", 0.0, a, "operator_tiling", cut, axial)
    made = axial()
    weights = list(axis_kernel.parameters())

    def axial_back() -> Any:
        return torch.autograd.grad(made, [mean, *weights], made.detach(), retain_graph=True)

    for cut in ((16, 8), (16, 16)):
        add(f"gradient of phi {cut}", 0.0, a, "phi_gradient_tiling", cut, axial_back)
    for cut in ((64, 8), (64, 4), (32, 4)):
        add(f"gradient of operator {cut}", 0.0, a, "operator_gradient_tiling", cut, axial_back)
    u = case.dim / case.head_dim
    field = torch.randn(batch, *case.grid, case.dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    encoding = torch.randn(*case.grid, case.dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gain, bias = (torch.randn(case.dim, device="cuda", requires_grad=True) for _ in range(2))
    rest_size = math.prod(case.grid[:-1])
    rest = torch.full((rest_size,), 1.0 / rest_size, device="cuda")
    end = torch.full((case.grid[-1],), 1.0 / case.grid[-1], device="cuda")

    def pre() -> Any:
        return p.prenorm(field, encoding, gain, bias, rest, end, 1e-5)

    for cut in ((16, 8, 1), (8, 8, 1), (16, 16, 1), (16, 4, 1), (16, 8, 2)):
        add(f"prenorm {cut}", 3 * u, p, "field_tiling", cut, pre)
    outputs = pre()
    probes = [torch.randn_like(x) for x in outputs]
    many = 8 if rest_size * case.grid[-1] >= 2**16 else 1
    for cut in ((8, many, 4, 3), (8, many, 4, 2), (8, many, 4, 4), (4, many, 2, 3), (8, 2 * many, 4, 3)):
        add(
            f"prenorm gradient {cut}",
            4 * u,
            p,
            "gradient_tiling",
            p.GradientTiling(*cut),
            lambda: torch.autograd.grad(outputs, [field, encoding, gain, bias], probes, retain_graph=True),
        )
    first = torch.randn(case.dim, heads * case.head_dim, device="cuda", requires_grad=True)
    second = torch.randn(case.dim, case.dim, device="cuda", requires_grad=True)
    moments = torch.rand(batch, heads, 2, device="cuda") + 0.5
    leaf = values.clone().requires_grad_()

    def out() -> Tensor:
        return o.output(leaf, moments, first, second, field, None)

    for cut in ((64, 4, 4, None), (128, 4, 2, None), (128, 4, 3, None), (128, 4, 4, None), (128, 8, 3, None)):
        add(f"output {cut}", heads + 3 * u, o, "output_tiling", o.OutputTiling(*cut), out)
    result = out()
    probe = torch.randn_like(result)

    def back() -> Any:
        return torch.autograd.grad(result, [leaf, first, second, field], probe, retain_graph=True)

    for cut in ((64, 8, 3), (64, 16, 3), (64, 16, 2), (128, 16, 2)):
        add(f"hidden gradient {cut}", 3 * u, o, "hidden_tiling", o.OutputTiling(*cut), back)
    for cut in ((64, 4, 4), (128, 4, 2), (128, 4, 3), (128, 4, 4), (128, 8, 4)):
        add(f"values gradient {cut}", 2 * heads + u, o, "values_tiling", o.OutputTiling(*cut), back)
    return calls


KERNELS = {
    "phi": "phi_kernel",
    "operator": "operator_kernel",
    "gradient of phi": "phi_gradient_kernel",
    "gradient of operator": "operator_gradient_kernel",
    "contract": "contract_kernel",
    "kernel gradient": "_kernel_gradient_kernel",
    "joint": "_joint_gradient_kernel",
    "prenorm gradient": "_prenorm_gradient_kernel",
    "prenorm": "_prenorm_kernel",
    "output": "output_kernel",
    "hidden gradient": "hidden_gradient_kernel",
    "values gradient": "values_gradient_kernel",
}


def kernel_of(label: str) -> str:
    return next(kernel for start, kernel in KERNELS.items() if label.startswith(start))


def is_wanted(label: str, only: list[str]) -> bool:
    return not only or any(word in label for word in only)


def compile_one(kind: str, name: str, part: int, parts: int, only: list[str]) -> str:
    """Fills the cache of compiled kernels, in a process of its own."""
    failures = []
    if kind == "variants":
        wanted = [item for item in variants(CASES[name], 2).items() if is_wanted(item[0], only)]
        for label, (_, call) in wanted[part::parts]:
            try:
                call()
            except Exception as error:  # one bad tile must not hide the others
                failures.append(f"{name} {label}: {str(error)[:200]}")
    else:
        case = CASES[name] if kind == "case" else CHECKS[name]
        layer, grid, *inputs = case.make(batch=min(case.batch, 2))
        engine.attach(layer, "force")
        step(layer, grid, *inputs, torch.bfloat16)
    torch.cuda.synchronize()
    return "; ".join(failures)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="*", default=[], choices=list(CASES))
    parser.add_argument("--variants", nargs="*", default=[], choices=list(CASES))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name holds one of these")
    arguments = parser.parse_args()
    began = time.perf_counter()
    jobs = [("case", n, 0, 1) for n in arguments.cases]
    jobs += [("check", n, 0, 1) for n in CHECKS if arguments.check]
    jobs += [("variants", n, k, 5) for n in arguments.variants for k in range(5)]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=15, mp_context=spawn) as pool:
        for job, future in [(job, pool.submit(compile_one, *job, arguments.only)) for job in jobs]:
            try:
                if message := future.result():
                    print(message, flush=True)
            except Exception as error:  # one tile that fails must not end the sweep
                print(job, "failed:", str(error)[:600], flush=True)
    print(f"compiled in {time.perf_counter() - began:.1f} s", flush=True)
    if arguments.check:
        for name, case in CHECKS.items():
            try:
                check(name, case)
            except Exception as error:
                print(name, "failed:", str(error)[:600], flush=True)
    for name in arguments.cases:
        try:
            profile(name, CASES[name])
        except Exception as error:
            print(name, "failed:", str(error)[:600], flush=True)
        torch.cuda.empty_cache()
    for name in arguments.variants:
        case = CASES[name]
        for label, (volume, call) in variants(case, case.batch).items():
            if not is_wanted(label, arguments.only):
                continue
            try:
                times = [t for kernel, t in durations(call, 4) if kernel.split(" ")[0] == kernel_of(label)]
                floor = volume * case.unit / BANDWIDTH * 1e6
                print(f"{name} {label:40} {sum(times):8.1f} us, floor {floor:6.1f}", flush=True)
            except Exception as error:
                print(name, label, "failed:", str(error)[:300].replace("\n", " "), flush=True)
        torch.cuda.empty_cache()
    print(f"all in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
