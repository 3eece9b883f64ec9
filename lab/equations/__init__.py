"""Measurements of our solvers against theory and against other packages."""
