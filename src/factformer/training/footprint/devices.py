"""What devices can do: bytes and operations per second, within them and between them, with where each number is from.

Only the H200 was measured. Numbers of datasheets are what a chip does at best, so that times predicted from them are
too short. Those of the CPU are measured by a probe in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from factformer.config import unknown_name
from factformer.kernels.estimates import BANDWIDTH, RATE

COPIED = 2**24
"""Numbers that the probe copies: more than the caches hold."""
PRODUCT = 1024
"""Rows and columns of the product of the probe."""
SMALLEST = 16
"""Numbers of the operation that tells what any operation takes."""


@dataclass(frozen=True)
class Device:
    """Per second: ``bandwidth`` bytes of memory read or written, ``rates`` operations by precision.

    ``link`` and ``network`` are bytes that leave a device, to others of its computer and to other computers.
    """

    name: str
    bandwidth: float
    rates: Mapping[str, float]
    link: float
    network: float
    source: str
    reached: Mapping[str, float]
    """Part of the bandwidth that our operations reach, by the way they are executed."""
    launch: Mapping[str, float]
    """Seconds that every operation takes at least: one by one, or replayed from a recorded step."""


# Fitted to the training steps of results/speed/model_h200.json, two numbers for each way: the fused steps and the
# eager ones of the textbook. Predicted over measured: 0.95 to 1.15 (tests/training/footprint/test_predicted.py).
REACHED = {"plain": 0.46, "fused": 0.58}
LAUNCH = {"eager": 20e-6, "recorded": 4.2e-6}
INFINIBAND = 50e9
ETHERNET = 1.25e9


def _gpu(name: str, bandwidth: float, low: float, full: float, link: float, source: str) -> Device:
    return Device(name, bandwidth, {"bf16-mixed": low, "32-true": full}, link, INFINIBAND, source, REACHED, LAUNCH)


_SHEET = "datasheet; network: InfiniBand of 400 Gbit/s per GPU"
GPUS = {
    "h200": _gpu(
        "H200",
        BANDWIDTH,
        RATE,
        67e12,
        450e9,
        "memory and bf16 measured on one H200 with a copy and a product; float32, NVLink 4 and network: datasheet",
    ),
    "h100": _gpu("H100 SXM", 3.35e12, 989e12, 67e12, 450e9, _SHEET),
    "a100": _gpu("A100 80 GB SXM", 2.04e12, 312e12, 19.5e12, 300e9, _SHEET),
    "rtx4090": _gpu("RTX 4090", 1.01e12, 165e12, 82.6e12, 32e9, f"{_SHEET}; link: PCIe 4.0 x16"),
}
NAMES = (*GPUS, "cpu")


def find_device(name: str) -> Device:
    """The device of this name; that of the CPU is measured now."""
    if name not in NAMES:
        raise unknown_name("--on", name, NAMES)
    return probe() if name == "cpu" else GPUS[name]


def probe(rounds: int = 3) -> Device:
    """What this process does on the CPU with its threads: the best of a few short runs, in seconds of the processor.

    Processes on one computer pass messages through its memory, read and written on both sides.
    """
    values, result = torch.ones(COPIED), torch.empty(COPIED)
    bandwidth = 2 * values.nbytes / _least(lambda: result.copy_(values), rounds)
    matrix = torch.ones(PRODUCT, PRODUCT)
    low = matrix.bfloat16()
    work = 2.0 * PRODUCT**3
    rates = {
        "32-true": work / _least(lambda: matrix @ matrix, rounds),
        "bf16-mixed": work / _least(lambda: low @ low, rounds),
    }
    few = torch.ones(SMALLEST)
    launch = _least(lambda: [few + few for _ in range(1000)], rounds) / 1000
    source = f"measured in this process with {torch.get_num_threads()} threads"
    launches = {"eager": launch, "recorded": launch}
    return Device("CPU", bandwidth, rates, bandwidth / 4, ETHERNET, source, {"plain": 1.0}, launches)


def _least(call: Callable[[], object], rounds: int) -> float:
    call()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return max(min(found), 1e-9) / torch.get_num_threads()
