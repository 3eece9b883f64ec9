"""The published numbers as data: Tables 1 to 4 of "Scalable Transformer for PDE Surrogate Modeling"
(Li, Shu, Barati Farimani, NeurIPS 2023, arXiv:2305.17560).

Errors are relative L2 norms, averaged over the sequence and of the last frame. Inference time is that of one
batch of sequences (10 in Table 1, 4 in Tables 2 and 3). Models and protocols carry the names of our catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from factformer.config import unknown_name

AR, LM = "autoregressive", "latent_marching"
MODELS = ("fno", "ffno", "dilated_resnet", "factformer")


@dataclass(frozen=True)
class Result:
    """One column of Tables 1 to 3: a model under a protocol; errors are (average, final) by field group."""

    model: str
    protocol: str
    errors: Mapping[str, tuple[float, float]]
    seconds_per_batch: float
    parameters: float
    training_unroll: int | None = None


@dataclass(frozen=True)
class Benchmark:
    """One of Tables 1 to 3."""

    name: str
    title: str
    problem: str
    grid: tuple[int, ...]
    num_frames: int
    marching_steps: int
    batch_size: int
    results: tuple[Result, ...]

    def find(self, model: str, protocol: str) -> Result:
        """The published result of ``model`` under ``protocol``."""
        for result in self.results:
            if (result.model, result.protocol) == (model, protocol):
                return result
        names = [f"{result.model}/{result.protocol}" for result in self.results]
        raise unknown_name("published result", f"{model}/{protocol}", names)


@dataclass(frozen=True)
class AttentionCost:
    """One row of Table 4: seconds at batch size 4 on 128 x 128 points, on an RTX 3090 with PyTorch 1.8.2."""

    attention: str
    relative_l2: float
    encoder_seconds: float
    propagator_seconds: float
    training_seconds: float
    training_memory_mb: float


def _results(
    errors: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]],
    seconds: tuple[float, ...],
    parameters: tuple[float, ...],
    unrolls: tuple[int, ...],
) -> Iterator[Result]:
    """Columns in the paper's order, AR and LM of each model in turn; ``unrolls`` of the AR columns."""
    for column in range(2 * len(MODELS)):
        model, is_latent = divmod(column, 2)
        yield Result(
            model=MODELS[model],
            protocol=LM if is_latent else AR,
            errors={group: (average[column], final[column]) for group, (average, final) in errors.items()},
            seconds_per_batch=seconds[column],
            parameters=parameters[model] * 1e6,
            training_unroll=None if is_latent else unrolls[model],
        )


TABLE_1 = Benchmark(
    "table1",
    "Kolmogorov flow",
    "kolmogorov_flow",
    (256, 256),
    num_frames=16,
    marching_steps=4,
    batch_size=10,
    results=tuple(
        _results(
            {
                "vorticity": (
                    (0.3177, 0.2978, 0.1486, 0.2453, 0.8156, 0.1655, 0.8835, 0.1734),
                    (0.4423, 0.4567, 0.2811, 0.3861, 1.1692, 0.3051, 1.0963, 0.3017),
                )
            },
            seconds=(0.73, 0.81, 0.86, 1.01, 4.69, 1.78, 3.14, 1.38),
            parameters=(85.1, 3.7, 2.4, 3.5),
            unrolls=(12, 6, 2, 2),
        )
    ),
)

TABLE_2 = Benchmark(
    "table2",
    "Isotropic turbulence",
    "isotropic_turbulence",
    (60, 60, 60),
    num_frames=10,
    marching_steps=2,
    batch_size=4,
    results=tuple(
        _results(
            {
                "pressure": (
                    (0.8080, 0.4634, 0.3151, 0.3264, 0.1725, 0.1778, 0.2989, 0.2545),
                    (1.1285, 0.6522, 0.4250, 0.4159, 0.2573, 0.2448, 0.4407, 0.3431),
                ),
                "velocity": (
                    (0.3967, 0.3382, 0.2298, 0.2303, 0.1143, 0.1250, 0.1775, 0.1670),
                    (0.6561, 0.4735, 0.2799, 0.2850, 0.1675, 0.1671, 0.2594, 0.2218),
                ),
            },
            seconds=(1.01, 0.91, 2.77, 1.37, 12.67, 6.89, 2.68, 1.31),
            parameters=(509.8, 3.0, 6.9, 5.1),
            unrolls=(2, 2, 2, 2),
        )
    ),
)

TABLE_3 = Benchmark(
    "table3",
    "Smoke buoyancy",
    "smoke_buoyancy",
    (64, 64, 64),
    num_frames=16,
    marching_steps=4,
    batch_size=4,
    results=tuple(
        _results(
            {
                "density": (
                    (0.1607, 0.1344, 0.1038, 0.1236, 0.0843, 0.0999, 0.1017, 0.0942),
                    (0.1775, 0.1287, 0.1415, 0.1219, 0.1070, 0.1062, 0.1693, 0.0941),
                ),
                "velocity": (
                    (0.5198, 0.4255, 0.3419, 0.3713, 0.2378, 0.2747, 0.3537, 0.2592),
                    (1.0245, 0.6718, 0.8655, 0.6146, 0.5372, 0.5023, 0.7881, 0.4482),
                ),
            },
            seconds=(3.19, 1.47, 6.35, 2.75, 27.49, 6.94, 5.61, 2.62),
            parameters=(509.8, 3.0, 6.9, 4.6),
            unrolls=(2, 2, 2, 2),
        )
    ),
)

TABLE_4 = (
    AttentionCost("factorized", 0.1529, 0.0202, 0.0112, 0.0954, 5217),
    AttentionCost("linear (matmul)", 0.5853, 0.1370, 0.0112, 0.3013, 12029),
    AttentionCost("linear (einsum)", 0.5853, 0.1333, 0.0112, 0.2938, 12029),
)

BENCHMARKS = {table.name: table for table in (TABLE_1, TABLE_2, TABLE_3)}
