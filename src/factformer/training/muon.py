"""Muon for the matrices of a network and AdamW for everything else, in one optimiser.

    M ← μ M + G,    W ← W - η (λ W + 0.2 √max(n, m) · O(G + μ M))

``O`` brings all singular values of its argument close to one by five steps of a quintic Newton-Schulz iteration
(Jordan et al. 2024); the factor gives the update the size of one of AdamW (Liu et al. 2025), so that both kinds of
weights share one learning rate. Matrices of equal shape are brought to it together: a network has dozens of them, and
each on its own would be too small for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_STEPS = 5
MOMENTUM = 0.95
BETAS, EPSILON = (0.9, 0.999), 1e-8


def orthogonalized(matrices: Tensor) -> Tensor:
    """Each of ``(batch, n, m)`` with singular values near one, as far as bfloat16 goes on a GPU."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NUM_STEPS):
        product = x @ x.mT
        x = a * x + (b * product + c * product @ product) @ x
    result: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return result


class Muon(Optimizer):
    """``matrices`` are those parameters of ``parameters`` that are moved by Muon."""

    def __init__(
        self, parameters: Iterable[Tensor], matrices: Collection[Tensor], *, lr: float, weight_decay: float
    ) -> None:
        # One group in the order of the network: a checkpoint names the state of a weight by its place there.
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay})
        self.chosen = {id(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        assert closure is None, "training takes one gradient per step"
        for group in self.param_groups:
            present = [p for p in group["params"] if p.grad is not None]
            if present:
                torch._foreach_mul_(present, 1.0 - group["lr"] * group["weight_decay"])
            self._move_matrices([p for p in present if id(p) in self.chosen], group["lr"])
            self._move_others([p for p in present if id(p) not in self.chosen], group["lr"])

    def _move_matrices(self, weights: list[Tensor], learning_rate: float) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"momentum": torch.zeros_like(weight)}
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(weight.shape, []).append(weight)
        for shape, members in by_shape.items():
            gradients: list[Any] = [weight.grad for weight in members]
            momenta = [self.state[weight]["momentum"] for weight in members]
            torch._foreach_mul_(momenta, MOMENTUM)
            torch._foreach_add_(momenta, gradients)
            ahead = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)
            moved = orthogonalized(torch.stack(list(ahead)))
            torch._foreach_add_(members, list(moved.unbind()), alpha=-learning_rate * 0.2 * max(shape) ** 0.5)

    def _move_others(self, weights: list[Tensor], learning_rate: float) -> None:
        if not weights:
            return
        for weight in weights:
            if not self.state[weight]:
                empty = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                self.state[weight] = {"step": torch.zeros(()), **empty}
        gradients: list[Any] = [weight.grad for weight in weights]
        states = [self.state[weight] for weight in weights]
        for state in states:
            state["step"] += 1
        count = float(states[0]["step"])
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(means, gradients, 1 - BETAS[0])
        torch._foreach_mul_(squares, BETAS[1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETAS[1])
        scale = torch._foreach_sqrt(squares)
        torch._foreach_div_(scale, (1 - BETAS[1] ** count) ** 0.5)
        torch._foreach_add_(scale, EPSILON)
        torch._foreach_addcdiv_(weights, means, scale, -learning_rate / (1 - BETAS[0] ** count))


def layer_matrices(backbone: nn.Module) -> list[Tensor]:
    """The weights of linear maps between layers; those that meet fields or frames outside are AdamW's."""
    return [part.weight for part in backbone.modules() if isinstance(part, nn.Linear)]
