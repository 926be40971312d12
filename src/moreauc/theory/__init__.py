r"""The paper's theory: parameters of the theorems, bounds of the lemmas, Moreau envelope, tests of assumptions.

One function per proposition, theorem and lemma of arXiv:2310.03234; those for MSVR and for the moving average are one,
with `moving_average`. Where the paper contradicts itself, or a statement its proof, `docs/paper_notes.md` says what is
implemented and why; the bounds follow the proofs. Arguments out of range are a `ValueError`.
"""

from moreauc.theory.bounds import (
    bag_pair_table_bound,
    bag_table_bound,
    sont_inner_table_bound,
    sont_outer_table_bound,
    sonx_table_bound,
    tpauc_table_bound,
)
from moreauc.theory.falsify import falsify
from moreauc.theory.moreau import moreau_envelope
from moreauc.theory.parameters import (
    fcco_weak_convexity,
    multi_instance_tpauc_parameters,
    sont_parameters,
    sonx_parameters,
    tcco_weak_convexity,
    tpauc_parameters,
)
from moreauc.theory.successors import alexr2_parameters, sonex_parameters

__all__ = [
    "alexr2_parameters",
    "bag_pair_table_bound",
    "bag_table_bound",
    "falsify",
    "fcco_weak_convexity",
    "moreau_envelope",
    "multi_instance_tpauc_parameters",
    "sonex_parameters",
    "sont_inner_table_bound",
    "sont_outer_table_bound",
    "sont_parameters",
    "sonx_parameters",
    "sonx_table_bound",
    "tcco_weak_convexity",
    "tpauc_parameters",
    "tpauc_table_bound",
]
