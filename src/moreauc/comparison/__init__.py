"""Methods against each other on one table: equal tuning effort, the same folds, nothing chosen on test rows."""

from moreauc.comparison._contestants import Contestant, contestants, network
from moreauc.comparison._run import Comparison, ComparisonResult

__all__ = ["Comparison", "ComparisonResult", "Contestant", "contestants", "network"]
