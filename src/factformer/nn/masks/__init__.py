"""Domains that do not fill their grid: fields without the values outside, and how close the walls of bodies are.

A mask is a quadrature: the weight of a point is the product of its axes' weights inside the domain Ω and zero outside,

    ∫_Ω f ≈ Σ_j w_j χ_j f_j,      mean over Ω = Σ_j w_j χ_j f_j / Σ_j w_j χ_j,      χ = 1 inside, 0 outside

(`factformer.nn.norms.cached_domain_weights`). Layers take χ as ``mask (batch, *grid)``, one for each sample, and read
nothing outside of it. What they give there is of no meaning unless they say so.
"""

from factformer.nn.masks.inside import Mask, inside, ratio
from factformer.nn.masks.walls import WallCloseness

__all__ = ["Mask", "WallCloseness", "inside", "ratio"]
