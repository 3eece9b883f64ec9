"""Looking into what lies on disk: the attention of a run or bundle on samples of a dataset."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from factformer._support.documents import read_json
from factformer._support.files import clean_leftovers, whole_file
from factformer.batch import Batch
from factformer.bundle import load
from factformer.data.dataset import Dataset
from factformer.evaluation.accuracy import Progress, check_compatible, check_setting, start_frames
from factformer.evaluation.attention import Analysis, analyse_attention
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.run import archive_members, check_writable, chosen_data, require_ours
from factformer.evaluation.timing import resolve_device
from factformer.surrogate import Surrogate
from factformer.training.feed.steps import as_told

ATTENTION_FILE = "attention.json"
KERNELS_FILE = "kernels.npz"
NUM_SAMPLES = 100
"""As many as the paper averages over."""


def inspect_run(
    path: str | Path,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    num_samples: int = NUM_SAMPLES,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """`analyse_attention` of a run folder or bundle, over ``num_samples`` windows spread over the split.

    ``data`` defaults to what the run trained on: the test split of a folder, or the one file.
    With ``out`` the numbers go to ``attention.json`` and the kernels of one sample to ``kernels.npz``; files of these
    names that no inspection wrote are never replaced.
    """
    began = time.perf_counter()
    target = resolve_device(device)
    if out is not None:
        check_writable(Path(out))
        check_ours(Path(out))
        clean_leftovers(Path(out))
    surrogate = load(path).to(target)
    dataset = chosen_data(path, data, split, surrogate.problem)
    analysis = analyse_attention(surrogate, sample_contexts(surrogate, dataset, num_samples, target, progress))
    seed = surrogate.provenance.get("seed")
    analysis.summary |= provenance(seed=seed, seconds=time.perf_counter() - began, device=target)
    if out is not None:
        write_json(Path(out) / ATTENTION_FILE, analysis.summary)
        if analysis.kernels:
            arrays = {f"layer{layer}_axis{axis}": k.numpy() for (layer, axis), k in analysis.kernels.items()}
            with whole_file(Path(out) / KERNELS_FILE) as partial:
                np.savez_compressed(partial, allow_pickle=False, **arrays)
    return analysis


def check_ours(folder: Path) -> None:
    """Raise where a file that `inspect_run` would write is there already and is not of an inspection."""
    kernel = re.compile(r"layer\d+_axis(\d+|None)")
    require_ours(
        {
            folder / ATTENTION_FILE: lambda path: {"kernels", "energy_share"} <= set(read_json(path)),
            folder / KERNELS_FILE: lambda path: (
                bool(names := archive_members(path)) and all(kernel.fullmatch(name) for name in names)
            ),
        },
        "an inspection",
    )


def sample_contexts(
    surrogate: Surrogate,
    dataset: Dataset,
    num_samples: int,
    device: torch.device,
    progress: Progress | None = None,
    batch_size: int = 4,
) -> Iterator[Batch]:
    """Contexts of ``num_samples`` windows: as many trajectories as there are, then further start frames."""
    check_compatible(surrogate, dataset, 1)
    dataset = as_told(dataset, surrogate.problem)
    stride = check_setting(surrogate.problem, dataset.problem)
    per_trajectory = -(-num_samples // dataset.num_trajectories)
    done, num_context = 0, surrogate.problem.num_context_frames
    for start in start_frames(surrogate, dataset, 1, per_trajectory):
        for first in range(0, dataset.num_trajectories, batch_size):
            last = min(first + batch_size, dataset.num_trajectories, first + num_samples - done)
            if last <= first:
                return
            batch = dataset.batch(range(first, last), start, num_context_frames=num_context, stride=stride)
            yield batch.to(device)
            done += last - first
            if progress is not None:
                progress(done, num_samples)
