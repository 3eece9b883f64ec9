"""Runs on Kolmogorov flow at 128², and the ablations made with them: heads, kernel dimension, seeds."""

from __future__ import annotations

from collections.abc import Mapping

from factformer.studies.cells import Builder, Cell, Scale, Target, Training

HEADS = {"paper": (1, 2, 4, 8, 12), "reduced": (1, 2, 4, 8), "tiny": (1, 2)}
KERNEL_DIMS = {"paper": (32, 64, 128, 256), "reduced": (32, 64, 128), "tiny": (4, 8)}
SEEDS = (0, 1, 2)


def at_128(scale: Scale, model: str = "factformer", *settings: str) -> Training:
    """A Kolmogorov run of the paper's ablations, which are at 128²; smaller scales take their own grid."""
    return Training("kolmogorov", model, resolution=128 if scale == "paper" else None, settings=settings)


def ablation(scale: Scale, name: str, title: str, key: str, values: Mapping[str, tuple[int, ...]]) -> Target:
    cells = [
        Cell(
            f"{value}",
            "average error",
            at_128(scale, "factformer", f"model.{key}={value}"),
            "fields.vorticity.relative_l2",
            error_path="fields.vorticity.standard_error",
        )
        for value in values[scale]
    ]
    return Target(name, title, tuple(cells))


def seeds(scale: Scale) -> Target:
    cells = [
        Cell(
            f"seed {seed}",
            quantity,
            at_128(scale, "factformer", f"training.seed={seed}"),
            f"fields.vorticity.{key}",
            error_path="fields.vorticity.standard_error" * (key == "relative_l2"),
        )
        for seed in SEEDS
        for quantity, key in (("average error", "relative_l2"), ("final error", "relative_l2_final"))
    ]
    return Target("seeds", "Influence of the random seed", tuple(cells))


BUILDERS: dict[str, Builder] = {
    "ablation-heads": lambda scale: ablation(
        scale, "ablation-heads", "Ablation on the number of heads", "heads", HEADS
    ),
    "ablation-kernel-dim": lambda scale: ablation(
        scale, "ablation-kernel-dim", "Ablation on the kernel dimension", "kernel_dim", KERNEL_DIMS
    ),
    "seeds": seeds,
}
