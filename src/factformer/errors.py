"""The exception for mistakes that a user can put right, and those for what fails in the middle of work."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(ValueError):
    """Bad input, named in one line: what is wrong, where, and what to do about it.

    The command line prints the message alone and exits with code 2; a library user sees an ordinary
    ``ValueError``.
    """


class InUse(UserError):  # noqa: N818 - says what happened
    """Another process works in a folder; the work goes on once that has ended."""


class NonFinite(UserError):  # noqa: N818 - says what happened
    """A surrogate met NaN or infinite values: in its input (``frame`` 0) or in its own prediction.

    ``frame`` counts the predicted frames until then, ``samples`` are the rows of the batch that hold such values and
    ``part`` says what they are values of. Where divergence decides what happens next, catch this type and no other.
    """

    def __init__(self, frame: int, samples: Sequence[int], part: str = "the input") -> None:
        self.frame, self.samples, self.part = frame, tuple(samples), part
        super().__init__(
            f"the roll-out left the finite numbers by frame {frame}; ask for fewer frames"
            if frame
            else f"{part} holds NaN or infinite values (samples {list(self.samples[:8])})"
        )


class Diverged(RuntimeError):  # noqa: N818 - says what happened
    """Training failed: the loss is not finite or grew out of all proportion."""


class BlewUp(UserError):  # noqa: N818 - says what happened
    """A solution or stored values hold NaN or infinite values, in ``what`` of a ``trajectory`` where that is known."""

    def __init__(self, message: str, trajectory: int = -1, what: str = "") -> None:
        super().__init__(message)
        self.trajectory, self.what = trajectory, what


class OutOfMemory(UserError):  # noqa: N818 - says what happened
    """Training needs more memory than there is; the message says which settings need less."""


class LostProcess(RuntimeError):  # noqa: N818 - says what happened
    """Another process of a job has ended, so that this one cannot go on; what is stored is kept."""
