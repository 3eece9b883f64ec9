"""GPU kernels stage by stage: errors against float64, time, and tiles to choose from."""
