r"""The theory at work: parameters of the theorems, error bounds of the lemmas, the Moreau envelope, assumptions.

One function per proposition, theorem and lemma of arXiv:2310.03234. Where the paper contradicts itself, or a statement
its proof, `docs/paper_notes.md` says what is implemented and why; the bounds follow the proofs.

Conventions of the parameters (`*_parameters`):

- The theorems fix parameters up to a factor, :math:`O(\cdot)`; that factor is an argument (`constant_tau` and so
  on), positive and 1 unless told. The numbers therefore show how things scale; they are not tuned.
- `epsilon` is the wanted norm of the gradient of the Moreau envelope, in [1e-20, 1e20].
- `tau` is capped where the theorem demands :math:`\tau \le 1/2` (MSVR) or :math:`\tau \le 1` (moving average). A capped
  `tau` means that `epsilon` is too large, or the batch too big, for the theorem: `lr` and `iterations` then still
  follow its formula but are not covered by it.
- `iterations` is rounded up, and is at least 1.
- `rho_bar` is None unless the Lipschitz and weak convexity constants are given, all of them. It is 0 where the problem
  is convex; any positive number serves then.

The bounds (`*_table_bound`) say how far the tables are from what they track. All have the form
:math:`(1 - \mu)^t e_0 + R` for the mean norm of a table's error after :math:`t` updates, and
:math:`(1 - \mu)^{2t} e_0 + R'` for the mean squared norm (`squared=True`), where :math:`R'` sums the squares of the
terms of :math:`R`. They hold in expectation. Arguments that mean the same in every one of them:

- `step`: number of updates done, :math:`t + 1` in the paper; 0 gives the initial error plus the constant terms.
- `initial_error`: mean over the rows of the error norm at the start, or of its square with `squared=True`; at least 0.
- `lr`: step size :math:`\eta`, at least 0.
- `sigma`: root of the variance bound :math:`\sigma^2` of one sample, at least 0.
- `gradient_bound`: :math:`M`, at least 0, with :math:`E\|G_t\|^2 \le M^2`; for a table of tables it bounds in the same
  way what the inner table holds.
- set and batch sizes: at least 1, a batch at most as large as its set.
"""

from moreauc.theory.bag_bounds import bag_pair_table_bound, bag_table_bound
from moreauc.theory.bags import MultiInstanceTPAUCParameters, multi_instance_tpauc_parameters
from moreauc.theory.falsify import Witness, falsify
from moreauc.theory.moreau import MoreauEnvelope, moreau_envelope
from moreauc.theory.three_level import SONTParameters, sont_moving_average_parameters, sont_parameters
from moreauc.theory.three_level_bounds import (
    sont_inner_table_bound,
    sont_moving_average_inner_table_bound,
    sont_moving_average_outer_table_bound,
    sont_outer_table_bound,
)
from moreauc.theory.two_level import (
    SONXParameters,
    sonx_moving_average_parameters,
    sonx_parameters,
    tpauc_parameters,
)
from moreauc.theory.two_level_bounds import sonx_moving_average_table_bound, sonx_table_bound, tpauc_table_bound
from moreauc.theory.weak_convexity import fcco_weak_convexity, tcco_weak_convexity

__all__ = [
    "MoreauEnvelope",
    "MultiInstanceTPAUCParameters",
    "SONTParameters",
    "SONXParameters",
    "Witness",
    "bag_pair_table_bound",
    "bag_table_bound",
    "falsify",
    "fcco_weak_convexity",
    "moreau_envelope",
    "multi_instance_tpauc_parameters",
    "sont_inner_table_bound",
    "sont_moving_average_inner_table_bound",
    "sont_moving_average_outer_table_bound",
    "sont_moving_average_parameters",
    "sont_outer_table_bound",
    "sont_parameters",
    "sonx_moving_average_parameters",
    "sonx_moving_average_table_bound",
    "sonx_parameters",
    "sonx_table_bound",
    "tcco_weak_convexity",
    "tpauc_parameters",
    "tpauc_table_bound",
]
