"""What the kernels of all stages share: launching, tiles, sums, products of tall matrices, arithmetic.

A kernel takes what it is made for, its sizes and tiles, as one constant: a frozen dataclass that is built by name and
whose fields it reads, ``S.BLOCK_P``. Tensors and numbers that belong together come as one tuple. Triton 3.6 reads a
field as a plain number or string, so `tl.static_range` and a string for another function want a local constant first,
and tiles of zeros are made by `arithmetic.zeros`.
"""
