r"""One loop that minimises a finite-sum problem, by the paper's algorithms and by what they are compared with.

=====================  ===========================================================================
:class:`SONX`          table rule (MSVR; moving average at gamma 0) on a two-level problem; with smoothed outer
                       functions and momentum SONEX
:class:`ALEXR2`        proximal steps on it, each solved by primal-dual steps
:class:`SONT`          the same with two tables on a three-level problem
:class:`PlugIn`        no table: the batch's own inner values inside the outer function
:class:`Subgradient`   the full objective's subgradient, every sample at every step
=====================  ===========================================================================

Seeds run side by side as replicas of the problem: one loss with `n` rows for each seed, one parameter of shape
`(seeds, dim)`. A seed's run does not depend on which others run with it.
"""

from moreauc.solver._minimize import minimize
from moreauc.solver.methods import ALEXR2, SONT, SONX, PlugIn, PowerDecay, Subgradient

__all__ = ["ALEXR2", "SONT", "SONX", "PlugIn", "PowerDecay", "Subgradient", "minimize"]
