"""Layers: factorized attention and what it is made of, spectral and ordinary convolutions, norms, networks."""

from factformer.nn.attention import FactorizedAttention
from factformer.nn.attention.axial_kernel import KernelOptions

__all__ = ["FactorizedAttention", "KernelOptions"]
