"""The time of an update, predicted from what it moves, computes and sends.

Operations follow each other; each takes as long as its bytes need at the bandwidth that such operations reach, or its
arithmetic at the rate, and a launch. Exchanges come on top of that, since none is assumed to be hidden: a device sends
what a collective moves, over the slowest connection of the devices that take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from factformer.parallel.traffic import moved
from factformer.training.footprint.counted import Footprint, FusedWork
from factformer.training.footprint.devices import Device
from factformer.training.footprint.operations import Operations, seconds

LAYER_LAUNCHES = 70
"""Kernels of a layer in a recorded training step on the fused path (docs/performance.md)."""
LOCAL_PASSES = 60
"""A local branch, forward and backward, takes as long as so many passes over its field: 53 to 64 by measured times of
kernels of 5 and 7 points in the plane and 3 in a box (docs/performance.md)."""


@dataclass(frozen=True)
class PredictedTime:
    """Seconds of an update on a device."""

    device: Device
    way: Literal["plain", "fused"]
    """How it is executed."""
    work: float
    """Operations on the device."""
    exchange: dict[str, float]
    """By kind of exchange."""

    @property
    def total(self) -> float:
        return self.work + sum(self.exchange.values())


def predict_update(footprint: Footprint, device: Device, precision: str, per_node: int | None = None) -> PredictedTime:
    """The longest update of an experiment that was counted; ``per_node`` devices are in a computer, by default all."""
    share, rate, fused = footprint.share, device.rates[precision], footprint.fused_work
    way: Literal["plain", "fused"] = "plain"
    if fused is not None:
        way, work = "fused", fused_seconds(fused, device, rate)
    else:
        work = plain_seconds(footprint.operations, device, rate, recorded=share.devices == 1)
    inside = share.devices if per_node is None else per_node
    exchange = {}
    for kind, given in footprint.sent.items():
        parts = share.domain if kind in ("reduce", "halo", "gather", "ring") else share.devices
        exchange[kind] = sent_bytes(kind, given, parts, share.strategy) / (
            device.link if parts <= inside else device.network
        )
    return PredictedTime(device, way, work, exchange)


def fused_seconds(work: FusedWork, device: Device, rate: float) -> float:
    """An update on the fused kernels, recorded."""
    bandwidth = device.reached["fused"] * device.bandwidth
    stages = max(work.num_bytes / bandwidth, work.flops / rate)
    return (
        stages + LOCAL_PASSES * work.field_bytes / bandwidth + LAYER_LAUNCHES * work.layers * device.launch["recorded"]
    )


def plain_seconds(operations: Operations, device: Device, rate: float, *, recorded: bool) -> float:
    """An update in plain PyTorch."""
    launch = device.launch["recorded" if recorded else "eager"]
    return seconds(operations, device.reached["plain"] * device.bandwidth, rate, launch)


def sent_bytes(kind: str, given: float, parts: int, strategy: str) -> float:
    """Bytes that leave a device for what it gives to a collective of ``parts``."""
    if kind == "gradients":  # summed up for all, or each part for the one that keeps it
        return moved("reduce", given, parts) / (1 if strategy == "ddp" else 2)
    return moved("gather" if kind == "weights" else kind, given, parts)
