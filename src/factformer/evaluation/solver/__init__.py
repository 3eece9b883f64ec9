"""Surrogate against solver: what each needs for how much accuracy, and when a surrogate has paid for itself."""

from factformer.evaluation.solver.benchmark import benchmark_solver

__all__ = ["benchmark_solver"]
