"""The result of an evaluation as a typed object: what `evaluate` gives, `evaluation.json` holds and `report` reads.

In memory a number that left the finite numbers is NaN or infinite; in the file it is null and comes back as None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factformer._support.documents import read_typed
from factformer.errors import UserError

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] | None
"""An error, a time or a size; None where it is not finite or was not measured."""
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)] | None
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Text = Annotated[str, Field(max_length=10_000, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=1_000, strict=True)]


@dataclass(frozen=True)
class Floor:
    """Errors of what costs nothing: persistence, or the training mean of a steady problem."""

    relative_l2: Amount
    relative_l2_final: Amount
    relative_l2_per_frame: list[Amount]


@dataclass(frozen=True)
class Spectrum:
    """Energy in shells of whole wavenumber, of the truth and of the prediction."""

    wavenumber: list[Count]
    prediction: list[Amount]
    truth: list[Amount]

    def __post_init__(self) -> None:
        if not len(self.wavenumber) == len(self.prediction) == len(self.truth):
            raise UserError("wavenumber, prediction and truth of a spectrum differ in length")


@dataclass(frozen=True)
class FieldErrors:
    """Errors of one field group, averaged over the windows; ``*_final`` are those of the last frame."""

    relative_l2: Amount
    relative_l2_final: Amount
    relative_l2_per_frame: list[Amount]
    standard_error: Amount
    standard_error_final: Amount
    vrmse: Amount
    spectrum_error: Amount
    correlation_time: Amount
    persistence: Floor
    spectrum: Spectrum | None

    def __post_init__(self) -> None:
        if not self.relative_l2_per_frame:
            raise UserError("there are no errors per frame")
        if len(self.relative_l2_per_frame) != len(self.persistence.relative_l2_per_frame):
            raise UserError("the errors and their floor differ in the number of frames")


@dataclass(frozen=True)
class OwnMetric:
    """A user's own metric, averaged over the windows, and that of what costs nothing."""

    mean: Number
    standard_error: Amount
    floor: Number


@dataclass(frozen=True)
class Trajectories:
    """Errors of each trajectory beside its parameters; ``shown`` are those whose roll-outs are kept, in their order."""

    parameters: Annotated[dict[Name, list[Number]], Field(min_length=1, max_length=1_000)]
    relative_l2: dict[Name, list[Amount]]
    shown: list[Count] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {len(values) for table in (self.parameters, self.relative_l2) for values in table.values()}
        if len(lengths) != 1 or any(index >= min(lengths) for index in self.shown):
            raise UserError("parameters and errors are not of the same trajectories")

    def labels(self) -> list[str]:
        """Such as ``reynolds 200``, of the trajectories that are shown."""
        return [
            ", ".join(
                f"{name} {values[index]:.4g}" for name, values in self.parameters.items() if values[index] is not None
            )
            for index in self.shown
        ]


@dataclass(frozen=True)
class Evaluation:
    """Errors, floor, parameters and cost of a surrogate on a split, and where the numbers come from."""

    fields: Annotated[dict[Name, FieldErrors], Field(min_length=1, max_length=1_000)]
    persistence: dict[Name, Amount]
    floor: Name
    parameters: Count
    seconds_per_sequence: Amount
    seconds_per_batch: Amount
    peak_memory_mb: Amount
    batch_size: Positive
    num_windows: Positive
    num_trajectories: Positive
    num_diverged: Count
    num_frames: Positive
    frame_dt: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    problem: Text
    model: Text
    grid: Annotated[list[Positive], Field(min_length=1, max_length=4)]
    split: Text
    other_parameters: Text
    dataset_fingerprint: Text
    precision: Text
    hardware: Text
    evaluation_seconds: Amount
    command: Text | None = None
    commit: Text | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64, strict=True)] | None = None
    wall_seconds: Amount = None
    created: Text | None = None
    versions: dict[Text, Text] = field(default_factory=dict)
    metrics: dict[Name, OwnMetric] = field(default_factory=dict)
    stride: Positive = 1
    """Frames of the data in one frame of the surrogate."""
    trajectories: Trajectories | None = None
    """Of a problem with parameters."""

    def __post_init__(self) -> None:
        if set(self.persistence) != set(self.fields):
            raise UserError("persistence and fields name other fields")
        if any(len(errors.relative_l2_per_frame) != self.num_frames for errors in self.fields.values()):
            raise UserError(f"the errors per frame are not those of {self.num_frames} frames")

    def to_dict(self) -> dict[str, Any]:
        """What is written to the file and printed by ``factformer evaluate --json``."""
        values = asdict(self)
        if not self.metrics:
            del values["metrics"]
        if self.trajectories is None:
            del values["trajectories"]
        return values


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a file; one line says what is wrong with another file."""
    return read_typed(path, _READER, "an evaluation", "factformer evaluate")


def evaluation_of(values: Mapping[str, Any]) -> Evaluation:
    """The evaluation of what `Evaluation.to_dict` gave, with null for what is not finite."""
    return _READER.validate_python(dict(values))


_READER = TypeAdapter(Evaluation)
