"""What equations have in common: the class, presets, the semilinear family, symmetries."""
