"""A flow that somebody plays with: the surrogate goes on from frame to frame, a solver beside it if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from factformer.batch import Batch
from factformer.errors import NonFinite, UserError
from factformer.metrics import energy_spectrum, relative_l2_per_frame
from factformer.pdes import check_finite
from factformer.report.planes import Component, Plane, components, middle_planes
from factformer.rollout import rollout
from factformer.serve.reference import ENDLESS, Reference
from factformer.serve.stirring import Bell, Stroke, disturbance
from factformer.surrogate import Surrogate


class Flow:
    """The state of one page: one sample, and everything that was done to it.

    A disturbance is added to every frame that the surrogate sees, so that it meets a flow which has been like that for
    a while, and to the solver's frame. Of a steady problem the static field is disturbed.
    """

    def __init__(self, surrogate: Surrogate, start: Batch, reference: Reference | None) -> None:
        self.surrogate, self.start = surrogate, start
        self.reference = reference if reference is not None and not reference.why_no_solver else None
        self.grid = surrogate.check(start, 1, None)
        self.components, self.planes = components(surrogate.problem.state), middle_planes(self.grid.shape)
        self.device = next(surrogate.parameters()).device
        self.restart()

    def restart(self) -> None:
        """Back to the first state, with the parameters of the start."""
        self.batch, self.number = self.start, 0
        self.has_ended = self.has_failed = False
        self.truth: Tensor | None = None
        self.began = 0
        self._follow()

    @property
    def problem_is_steady(self) -> bool:
        return self.surrogate.problem.steady

    @property
    def parameters(self) -> dict[str, float]:
        """The values of the problem's parameters now."""
        values = self.batch.parameters
        names = self.surrogate.problem.parameters
        return {} if values is None else dict(zip(names, values[0].tolist(), strict=True))

    def _follow(self) -> None:
        """Predict from the batch as it is now."""
        forcing, context = self.batch.forcing, self.surrogate.problem.num_context_frames
        count = 1 if self.problem_is_steady else ENDLESS if forcing is None else forcing.shape[1] - context
        self._predicted: Iterator[Tensor] = (
            rollout(self.surrogate, self.batch.to(self.device), count) if count else iter(())
        )
        if self.problem_is_steady:
            self.frame = next(self._predicted).float().cpu()
        else:
            assert self.batch.context is not None
            self.frame = self.batch.context[:, -1]

    def _solve(self, state: Tensor) -> None:
        """Let the solver start from ``state``."""
        assert self.reference is not None
        self._solved = self.reference.frames(self.batch, state, self.parameters)
        self.truth = next(self._solved).float()

    def step(self) -> None:
        """One frame on, with the solver where it is compared; nothing where the known forcing ends."""
        if self.problem_is_steady:
            return
        try:
            frame = next(self._predicted, None)
        except NonFinite:
            self._predicted = iter(())
            self.has_failed = True
        if self.has_failed:
            raise UserError(f"the flow left the finite numbers by frame {self.number}; restart it")
        if frame is None:
            self.has_ended = True
            return
        self.frame = frame.float().cpu()
        assert self.batch.context is not None
        context = torch.cat([self.batch.context, self.frame.unsqueeze(1)], dim=1)[:, 1:]
        self.batch = self.batch.from_frame(1, context)
        self.number += 1
        if self.truth is not None:
            truth, self.truth = next(self._solved).float(), None
            check_finite(self.surrogate.problem.name, truth.unsqueeze(1))
            self.truth = truth

    def compare(self, wanted: bool) -> None:
        """Start the solver from the frame that is shown, or leave it."""
        if not wanted:
            self.truth = None
            return
        if self.reference is None:
            raise UserError("there is no solver to compare with")
        self.began = self.number
        self._solve(self._origin())

    def _origin(self) -> Tensor:
        if self.problem_is_steady:
            assert self.batch.static is not None
            return self.batch.static
        return self.frame

    def stir(self, component: Component, plane: Plane, stroke: Stroke) -> None:
        """Disturb the flow at a place of a picture."""
        if self.problem_is_steady:
            self._stir_static(plane, stroke)
        else:
            assert self.batch.context is not None
            added = disturbance(self.surrogate, self.grid, component, plane, stroke)
            if self.batch.mask is not None:
                added = added * self.batch.mask[0].unsqueeze(-1)
            self.batch = self.batch._replace(context=self.batch.context + added)
            truth = None if self.truth is None else self.truth + added
            self._follow()
            if truth is not None:
                self._solve(truth)

    def _stir_static(self, plane: Plane, stroke: Stroke) -> None:
        static, first = self.batch.static, self.start.static
        assert static is not None and first is not None and self.surrogate.normalizer.static_std is not None
        size = stroke.strength * float(self.surrogate.normalizer.static_std[0])
        channel = static[..., :1] + size * Bell(self.grid, plane, stroke).values.unsqueeze(-1)
        channel = channel.clamp(float(first[..., 0].min()), float(first[..., 0].max()))
        self.batch = self.batch._replace(static=torch.cat([channel, static[..., 1:]], dim=-1))
        self._follow()
        if self.truth is not None:
            self._solve(self._origin())

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Go on with other values of the problem's parameters."""
        names = self.surrogate.problem.parameters
        if not set(values) <= set(names):
            raise UserError(f"parameters are {', '.join(names) or 'none'}; got {', '.join(values)}")
        merged = {**self.parameters, **values}
        self.batch = self.batch._replace(parameters=torch.tensor([[merged[name] for name in names]]))
        self._follow()
        if self.truth is not None:
            self._solve(self._origin() if self.problem_is_steady else self.truth)

    def errors(self) -> dict[str, float]:
        """Relative error of each field against the solver, in this frame; nothing where it is not compared."""
        if self.truth is None:
            return {}
        predicted, truth = self.frame.unsqueeze(1), self.truth.unsqueeze(1)
        slices = self.surrogate.problem.state_slices
        return {
            name: float(relative_l2_per_frame(predicted[..., s], truth[..., s], mask=self.batch.mask))
            for name, s in slices.items()
        }

    def spectra(self, group: str) -> dict[str, list[float]]:
        """Energy spectra of a field of the surrogate and, where it is compared, of the solver."""
        grid = self.grid
        if (
            not all(grid.periodic)
            or not all(grid.is_even(m) for m in range(grid.num_axes))
            or self.batch.mask is not None
        ):
            return {}
        channels = self.surrogate.problem.state_slices[group]
        frames = {"prediction": self.frame} | ({} if self.truth is None else {"truth": self.truth})
        return {name: energy_spectrum(frame[..., channels])[0].tolist() for name, frame in frames.items()}
