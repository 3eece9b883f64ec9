"""Stages for calls without gradients on a CPU: a block of points, or a head, at a time.

A call on a CPU is bound by its products and by memory. The library that plain PyTorch takes for float32 products
reaches less than half of what oneDNN does on some processors. A field of many channels that is written as a whole may
cost more than the product that made it: the system hands out its memory page by page, each time anew. Here what lies
between two products is a piece that stays in the cache, and no product needs a copy that turns its operand around.

Every stage is a module with ``fits(layer, *arguments)`` and ``run(layer, *arguments, dtype=…)``, which computes what
``layer.plain(*arguments)`` does, in another order of sums. The reference implementation is that method.
"""

from __future__ import annotations

from factformer.kernels.blocked import attention, encoder, local, marching, positions

__all__ = ["attention", "encoder", "local", "marching", "positions"]
