"""What fits into the memory of a device, and which changes of an experiment help where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from factformer._support.axes import per_axis
from factformer.errors import UserError
from factformer.models._backbone import backbone_of
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment
from factformer.training.footprint.counted import Footprint, count
from factformer.training.footprint.sharing import Share

RESERVE = 0.15
"""Part of a device that stays free: peaks measured on an H200 lie up to 10 % above the counted ones, and libraries
keep workspaces."""
MOST_PARTS = 64


@dataclass(frozen=True)
class Change:
    """Options of the command line, and what an update takes with them."""

    options: str
    footprint: Footprint
    same_result: bool
    """Whether the same weights come out but for round-off."""


def fits(num_bytes: int, memory: float) -> bool:
    """Whether a counted peak leaves the reserve free."""
    return num_bytes <= (1 - RESERVE) * memory


def largest_batch(experiment: Experiment, problem: Problem, share: Share, memory: float) -> int:
    """The largest ``training.batch_size`` whose update fits without accumulation; 0 where not one window does.

    Memory grows by the same amount with each window, so two counts tell it.
    """
    peaks = []
    for windows in (1, 2):
        batch = windows * share.groups
        changed = experiment.override([f"training.batch_size={batch}", "training.accumulate=1"])
        peaks.append(count(changed, problem, share).training)
    if not fits(peaks[0], memory):
        return 0
    room = (1 - RESERVE) * memory - peaks[0]
    return share.groups * (1 + int(room / max(1, peaks[1] - peaks[0])))


def suggestions(experiment: Experiment, problem: Problem, share: Share, memory: float) -> list[Change]:
    """Changes that make an update fit: single ones or, where none does, the shortest row of them in this order.

    The last change of a row that still does not fit is returned alone, so that one sees how far away it is.
    """
    single = [change for *_, change in _changes(experiment, problem, share)]
    fitting = [change for change in single if fits(change.footprint.training, memory)]
    if fitting or not single:
        return fitting
    taken: list[str] = []
    same, last = True, single[0]
    for kind in ("accumulate", "checkpointing", "precision", "domain", "patch"):
        found = list(_changes(experiment, problem, share, kind))
        if not found:
            continue
        # Of several numbers of parts the first that fits, or the most.
        chosen = next((item for item in found if fits(item[2].footprint.training, memory)), found[-1])
        experiment, share, change = chosen
        taken.append(change.options)
        same = same and change.same_result
        last = Change(" ".join(taken), change.footprint, same)
        if fits(last.footprint.training, memory):
            break
    return [last]


Candidate = tuple[str, Experiment, Share, str, bool]


def _changes(
    experiment: Experiment, problem: Problem, share: Share, wanted: str | None = None
) -> Iterator[tuple[Experiment, Share, Change]]:
    """Each change by itself; with ``wanted`` those of one kind."""
    for kind, changed, shared, options, same in _candidates(experiment, problem, share):
        if wanted not in (None, kind):
            continue
        try:
            footprint = count(changed, problem, shared)
        except UserError:  # a change that this experiment cannot have
            continue
        yield changed, shared, Change(options, footprint, same)


def _candidates(experiment: Experiment, problem: Problem, share: Share) -> Iterator[Candidate]:
    config, model = experiment.training, experiment.model

    def setting(kind: str, assignment: str, *, same: bool) -> Candidate:
        return kind, experiment.override([assignment]), share, f"--set {assignment}", same

    rows = config.batch_size // share.groups
    if config.accumulate < rows:
        yield setting("accumulate", f"training.accumulate={rows}", same=True)
    if not model.checkpointing:
        yield setting("checkpointing", "model.checkpointing=true", same=True)
    if config.precision != "bf16-mixed":
        changed = experiment.override(["training.precision=bf16-mixed"])
        yield "precision", changed, share, "--precision bf16-mixed", False
    if share.strategy == "ddp" and backbone_of(model).cuttable:
        parts = 2 * share.domain
        while parts <= max(8, min(share.devices, MOST_PARTS)):
            devices = share.devices if share.devices % parts == 0 else parts
            yield (
                "domain",
                experiment,
                replace(share, devices=devices, domain=parts),
                f"--devices {devices} --domain {parts}",
                True,
            )
            parts *= 2
    if share.strategy == "ddp" and share.devices > 1 and share.domain == 1:
        yield "fsdp", experiment, replace(share, strategy="fsdp"), "--strategy fsdp", True
    patch = [2 * size for size in per_axis("model.patch", model.patch, problem.grid.num_axes)]
    if max(patch) <= 16:
        text = str(patch[0]) if len(set(patch)) == 1 else str(patch).replace(" ", "")
        yield setting("patch", f"model.patch={text}", same=False)
