"""Studies that let one see the theory at work; `moreauc study` runs them."""

from moreauc.studies.convergence import ConvergenceStudy

__all__ = ["ConvergenceStudy"]
