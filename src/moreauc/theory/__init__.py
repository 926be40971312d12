r"""The paper's theory: parameters of the theorems, weak convexity of the objectives, Moreau envelope.

One function for each proposition and theorem of arXiv:2310.03234; those for MSVR and for the moving average are one,
with `moving_average`. Where the paper contradicts itself, or a statement its proof, `docs/paper_notes.md` says what is
implemented and why. Arguments out of range are a `ValueError`.
"""

from moreauc.theory.moreau import moreau_envelope
from moreauc.theory.parameters import (
    fcco_weak_convexity,
    multi_instance_tpauc_parameters,
    sont_parameters,
    sonx_parameters,
    tcco_weak_convexity,
    tpauc_parameters,
)

__all__ = [
    "fcco_weak_convexity",
    "moreau_envelope",
    "multi_instance_tpauc_parameters",
    "sont_parameters",
    "sonx_parameters",
    "tcco_weak_convexity",
    "tpauc_parameters",
]
