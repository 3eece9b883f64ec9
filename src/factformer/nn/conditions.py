"""What layers know beside the field: the parameters of each sample, and which points lie inside the domain.

Numbers such as a Reynolds number change what a network computes by an embedding and a modulation of each block:

    e = W₂ σ(W₁ p + b₁) + b₂,       z ← z (1 + s) + t,    (s, t) = M e

``p`` are the normalised parameters of a sample, ``s`` and ``t`` have one entry for each channel of the latent field
(FiLM: Perez et al. 2018). ``M`` is zero at the start of training, where the modulation leaves every bit as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.nn.mlp import MLP
from factformer.nn.stage import Stage


class Conditions(NamedTuple):
    """One for each call; a problem without parameters and masks has neither part."""

    parameters: Float[Tensor, "batch embedding"] | None = None
    """The embedded parameters of each sample, which modulate every block."""
    mask: Bool[Tensor, "batch *grid"] | None = None
    """True inside the domain: points outside have no weight in any integral."""


UNCONDITIONED = Conditions()

EMBEDDING_DIM = 64


class ParameterEmbedding(nn.Module):
    """The parameters of each sample as `EMBEDDING_DIM` smooth functions of them, in full precision."""

    def __init__(self, num_parameters: int) -> None:
        super().__init__()
        self.network = MLP(num_parameters, EMBEDDING_DIM, EMBEDDING_DIM)

    def forward(self, parameters: Float[Tensor, "batch parameter"]) -> Float[Tensor, "batch embedding"]:
        with torch.autocast(parameters.device.type, enabled=False):
            embedding: Tensor = self.network(parameters)
        return embedding


class Modulation(Stage):
    """Scale and shift of each channel of a latent field, as the embedded parameters of the sample say."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.zeros(2 * dim, EMBEDDING_DIM))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], embedding: Float[Tensor, "batch embedding"]
    ) -> Float[Tensor, "batch *grid dim"]:
        modulated: Tensor = self.execute(z, embedding)
        return modulated

    def plain(self, z: Tensor, embedding: Tensor) -> Tensor:
        both = self.scale_and_shift(embedding)
        # Not len(both): a trace would take it for a constant.
        over_grid = (both.shape[0], *[1] * (z.ndim - 2), both.shape[1] // 2)
        scale, shift = (part.reshape(over_grid).to(z.dtype) for part in both.chunk(2, dim=-1))
        return torch.addcmul(shift, z, 1 + scale)

    def scale_and_shift(self, embedding: Float[Tensor, "batch embedding"]) -> Float[Tensor, "batch both"]:
        """The scale of each channel and then the shift of each, in full precision."""
        with torch.autocast(embedding.device.type, enabled=False):
            return functional.linear(embedding, self.weight)
