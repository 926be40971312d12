r"""One loop that minimises a finite-sum problem, by the paper's algorithms and by what they are compared with.

=====================  ===========================================================================
:class:`SONX`          table rule (MSVR; moving average at gamma 0) on a two-level problem
:class:`SONT`          the same with two tables on a three-level problem
:class:`PlugIn`        no table: the batch's own inner values inside the outer function
:class:`Subgradient`   the full objective's subgradient, every sample at every step
=====================  ===========================================================================

Seeds run side by side as replicas of the problem: one loss with `n` rows for each seed, one parameter of shape
`(seeds, dim)`. A seed's run does not depend on which others run with it.
"""

from moreauc.solver._minimize import minimize
from moreauc.solver.methods import SONT, SONX, PlugIn, PowerDecay, Subgradient
from moreauc.solver.problems import ThreeLevelProblem, TwoLevelProblem

__all__ = ["SONT", "SONX", "PlugIn", "PowerDecay", "Subgradient", "ThreeLevelProblem", "TwoLevelProblem", "minimize"]
