"""The losses: each checks a batch, reads and updates its tables, and returns a scalar to call `backward` on."""

from moreauc.criteria.auc_min_max import AUCMinMaxLoss
from moreauc.criteria.auc_squared_hinge import AUCSquaredHingeLoss
from moreauc.criteria.aw_poly import AWPolyLoss
from moreauc.criteria.cross_entropy import CrossEntropyLoss
from moreauc.criteria.fcco import FCCOLoss
from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_erm import GroupERMLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.criteria.grouped import GroupedLoss
from moreauc.criteria.midam import MIDAMLoss
from moreauc.criteria.mini_batch_tpauc import MiniBatchTPAUCLoss
from moreauc.criteria.multi_instance_tpauc import MultiInstanceTPAUCLoss
from moreauc.criteria.pooled import PooledLoss
from moreauc.criteria.sample_cvar import SampleCVaRLoss
from moreauc.criteria.sota_s import SOTAsLoss
from moreauc.criteria.staco import STACOLoss
from moreauc.criteria.tcco import TCCOLoss
from moreauc.criteria.tpauc import TPAUCLoss

__all__ = [
    "AUCMinMaxLoss",
    "AUCSquaredHingeLoss",
    "AWPolyLoss",
    "CrossEntropyLoss",
    "ExponentiatedGroupDROLoss",
    "FCCOLoss",
    "GroupDROLoss",
    "GroupERMLoss",
    "GroupedLoss",
    "MIDAMLoss",
    "MiniBatchTPAUCLoss",
    "MultiInstanceTPAUCLoss",
    "PooledLoss",
    "SOTAsLoss",
    "STACOLoss",
    "SampleCVaRLoss",
    "TCCOLoss",
    "TPAUCLoss",
]
