"""The theory at work: parameters of the theorems, error bounds of the lemmas, the Moreau envelope, assumptions."""

from moreauc.theory.bounds import (
    bag_pair_table_bound,
    bag_table_bound,
    sont_inner_table_bound,
    sont_moving_average_inner_table_bound,
    sont_moving_average_outer_table_bound,
    sont_outer_table_bound,
    sonx_moving_average_table_bound,
    sonx_table_bound,
    tpauc_table_bound,
)
from moreauc.theory.falsify import Witness, falsify
from moreauc.theory.moreau import MoreauEnvelope, moreau_envelope
from moreauc.theory.parameters import (
    MultiInstanceTPAUCParameters,
    SONTParameters,
    SONXParameters,
    fcco_weak_convexity,
    multi_instance_tpauc_parameters,
    sont_moving_average_parameters,
    sont_parameters,
    sonx_moving_average_parameters,
    sonx_parameters,
    tcco_weak_convexity,
    tpauc_parameters,
)

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
