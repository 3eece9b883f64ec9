"""Triton kernels by stage: attention, local branch, frame encoder, marching and decoder; and for the solvers.

Every stage is a package with the functions ``width``, ``fits`` and ``run``, which need no Triton to be imported:

- ``width(layer)``: channels that its work grows with, for the choice of blocks on a CPU;
- ``fits(layer, *arguments)``: whether the tiles of the kernels hold a layer of these sizes;
- ``run(layer, *arguments, dtype=…)``: what ``layer.plain(*arguments)`` computes, in ``dtype``, with gradients.

The reference implementation of a kernel is plain PyTorch in `factformer.nn`, which tests hold it against; every module
names its own. `factformer.engine` decides when a stage runs on its kernels.
"""
