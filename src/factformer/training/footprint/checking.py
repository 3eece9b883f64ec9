"""Whether an update can fit into main memory, asked before training begins."""

from __future__ import annotations

import math

from factformer._support.axes import per_axis
from factformer._support.limits import available_memory, require_memory
from factformer.parallel.attaching import cut_shape
from factformer.protocols import BaseProtocol
from factformer.training.experiment.definition import Experiment
from factformer.training.footprint.counted import NotCountableError, count_update
from factformer.training.footprint.sharing import Share

CLOSE = 0.01
"""An update is counted, which takes about a second, where its latent fields fill this part of the memory."""
ADVICE = "lower training.batch_size or raise training.accumulate (`factformer plan` says what fits)"


def check_memory(experiment: Experiment, protocol: BaseProtocol, num_groups: int, domain: int, *, on_cpu: bool) -> None:
    """Raise where the windows of an update or, on the CPU, what its backward pass needs cannot fit into main memory.

    No more is counted than is there: a run that fits is never refused.
    """
    config, model, problem = experiment.training, experiment.model, protocol.problem
    share, length = config.batch_size // num_groups, protocol.window_length
    points = problem.grid.num_points / domain
    windows = 4 * share * length * points * problem.num_state_channels
    what = f"a batch of {share} windows of {length} frames"
    require_memory(windows, what, ADVICE)
    if not on_cpu:
        return
    patches = points / math.prod(per_axis("model.patch", model.patch, problem.grid.num_axes))
    fields = 4 * (share // config.accumulate) * patches * model.dim * (model.depth + 1)
    require_memory(windows + fields, what, ADVICE)
    if windows + fields > CLOSE * available_memory():
        counted = _counted(experiment, protocol, num_groups, domain)
        if counted is not None:
            require_memory(counted, f"an update with {what}", ADVICE)


def _counted(experiment: Experiment, protocol: BaseProtocol, num_groups: int, domain: int) -> int | None:
    """Peak of an update of a process, without neighbours where the grid is cut; ``None`` where it cannot be told."""
    problem = protocol.problem
    if domain > 1:
        cut = cut_shape(problem.grid.shape, domain)
        if any(size % (parts * 2) for size, parts in zip(problem.grid.shape, cut, strict=True) if parts > 1):
            return None
        shape = [size // parts for size, parts in zip(problem.grid.shape, cut, strict=True)]
        protocol = type(protocol)(protocol.config, problem.with_grid(problem.grid.resample(shape)))
    alone = experiment.override([f"training.batch_size={experiment.training.batch_size // num_groups}"])
    try:
        return count_update(alone, protocol, Share(gpu=False)).plain
    except NotCountableError:
        return None
