"""Attention on grids: factorized (the paper's), axial, Galerkin, linear; rotary encoding."""

from factformer.nn.attention.factorized import FactorizedAttention

__all__ = ["FactorizedAttention"]
