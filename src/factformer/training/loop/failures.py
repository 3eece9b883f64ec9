"""What can go wrong in training, said in one line."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from factformer.errors import Diverged as Diverged
from factformer.errors import LostProcess, OutOfMemory, UserError
from factformer.training.experiment.definition import Experiment
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.folder import RunFolder

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def exploded(values: Mapping[str, float], lowest_loss: float | None, factor: float) -> bool:
    """Whether a loss or gradient is not finite, or the loss is ``factor`` times the lowest one so far."""
    if not all(math.isfinite(value) for value in values.values()):
        return True
    return lowest_loss is not None and values["loss"] > factor * lowest_loss


@contextmanager
def explained(run: RunFolder, experiment: Experiment) -> Iterator[None]:
    """Turn failures of the machine into errors that say what helps."""
    try:
        yield
    except (UserError, Diverged):
        raise
    except (OSError, SafetensorError) as error:
        if checkpoint.is_disk_full(error) or getattr(error, "errno", None) in NOT_WRITABLE:
            where = Path(getattr(error, "filename", None) or run.path)
            raise UserError(checkpoint.describe_write_error(where, error)) from error
        raise
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(out_of_memory(experiment)) from error
        if is_lost_process(error):
            raise LostProcess(
                "a process of the run was lost; resume from the last checkpoint with "
                f"`factformer train --resume --out {run.path}`"
            ) from error
        raise


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)


def is_lost_process(error: BaseException) -> bool:
    if isinstance(error, torch.distributed.DistError):
        return True
    return torch.distributed.is_initialized() and any(
        word in str(error) for word in ("Connection closed by peer", "Connection reset", "Broken pipe", "gloo")
    )


def out_of_memory(experiment: Experiment) -> str:
    """Which knobs help, with the values they have now."""
    training = experiment.training
    knobs = [f"training.accumulate={2 * training.accumulate} (same result, half the memory)"]
    if training.batch_size > 1:
        knobs.append(f"training.batch_size={training.batch_size // 2}")
    if not experiment.model.checkpointing:
        knobs.append("model.checkpointing=true (recomputes layers)")
    if training.precision != "bf16-mixed":
        knobs.append("--precision bf16-mixed")
    knobs.append("data.residence=stream")
    return f"out of memory in training; what helps, by --set: {', '.join(knobs)}"
