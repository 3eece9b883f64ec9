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

from factformer.nn.convolution import Convolution

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
        product = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(product, product, product, beta=b, alpha=c), x, beta=a)
    result: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return result


class Muon(Optimizer):
    """``matrices`` are those parameters of ``parameters`` that are moved by Muon.

    Nothing in a step asks the device, so that it can be recorded: the learning rate may be a number on the device, and
    the steps are counted there.
    """

    def __init__(
        self, parameters: Iterable[Tensor], matrices: Collection[Tensor], *, lr: float, weight_decay: float
    ) -> None:
        # One group in the order of the network: a checkpoint names the state of a weight by its place there.
        # That it can be recorded is seen from ``capturable``, as in torch's optimisers.
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay, "capturable": False})
        self.chosen = {id(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        assert closure is None, "training takes one gradient per step"
        for group in self.param_groups:
            present = [p for p in group["params"] if p.grad is not None]
            if not present:
                continue
            rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=present[0].device)
            torch._foreach_mul_(present, 1.0 - rate * group["weight_decay"])
            self._move_matrices([p for p in present if id(p) in self.chosen], rate)
            self._move_others([p for p in present if id(p) not in self.chosen], rate)

    def _move_matrices(self, weights: list[Tensor], rate: Tensor) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"momentum": torch.zeros_like(weight)}
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(weight.shape, []).append(weight)
        for members in by_shape.values():
            gradients: list[Any] = [weight.grad for weight in members]
            momenta = [self.state[weight]["momentum"] for weight in members]
            torch._foreach_mul_(momenta, MOMENTUM)
            torch._foreach_add_(momenta, gradients)
            ahead = torch.stack(torch._foreach_add(gradients, momenta, alpha=MOMENTUM))
            matrices = ahead.flatten(2)  # of a convolution: all that goes into one channel
            moved = orthogonalized(matrices) * (rate * (-0.2 * max(matrices.shape[1:]) ** 0.5))
            torch._foreach_add_(members, list(moved.view_as(ahead).unbind()))

    def _move_others(self, weights: list[Tensor], rate: Tensor) -> None:
        if not weights:
            return
        for weight in weights:
            if not self.state[weight]:
                empty = {name: torch.zeros_like(weight) for name in ("mean", "square")}
                self.state[weight] = {"count": torch.zeros((), device=weight.device), **empty}
        gradients: list[Any] = [weight.grad for weight in weights]
        counts, means, squares = (
            [self.state[weight][name] for weight in weights] for name in ("count", "mean", "square")
        )
        torch._foreach_add_(counts, 1.0)
        torch._foreach_lerp_(means, gradients, 1 - BETAS[0])
        torch._foreach_mul_(squares, BETAS[1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETAS[1])
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, (1.0 - BETAS[1] ** counts[0]).sqrt())
        torch._foreach_add_(scales, EPSILON)
        steps = torch._foreach_div(means, scales)
        torch._foreach_mul_(steps, -rate / (1.0 - BETAS[0] ** counts[0]))
        torch._foreach_add_(weights, steps)


def layer_matrices(backbone: nn.Module) -> list[Tensor]:
    """The weights of linear maps and convolutions between layers.

    Those that meet fields or frames outside are AdamW's, and so are convolutions of single channels, which mix none.
    """
    kinds = (nn.Linear, Convolution)
    weights = [part.weight for part in backbone.modules() if isinstance(part, kinds)]
    return [weight for weight in weights if weight.shape[1] > 1]
