"""The theory at work: parameters of the theorems, error bounds of the lemmas, the Moreau envelope."""

from moreauc.theory.moreau import MoreauEnvelope, moreau_envelope
from moreauc.theory.parameters import fcco_weak_convexity, tcco_weak_convexity

__all__ = ["MoreauEnvelope", "fcco_weak_convexity", "moreau_envelope", "tcco_weak_convexity"]
