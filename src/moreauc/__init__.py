"""Losses and solvers for non-smooth weakly-convex coupled compositional optimisation."""

__version__ = "0.1.0.dev0"

__all__: list[str] = []
