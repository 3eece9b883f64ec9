"""What the kernels of all stages share: launching, tiles, sums, products of tall matrices, arithmetic."""
