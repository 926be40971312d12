r"""Any loss of scored rows, for bags: the sampled instances of a bag are pooled as if they were all of it."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from moreauc._checks import as_index, as_labels, check_shape
from moreauc.core.pooling import Pooling, PoolingName, get_pooling
from moreauc.criteria._base import Step, WrappingCriterion
from moreauc.criteria._batches import Instances, bag_instances
from moreauc.criteria._gates import enter
from moreauc.criteria._validation import Check


class _Bags(NamedTuple):
    """A checked batch: instances, with gradient, labels, numbers, instances at the previous weights, and the gate."""

    check: Check
    instances: Instances
    labels: Tensor
    numbers: Tensor
    before: Tensor | None
    gate: Tensor | None


class PooledLoss(WrappingCriterion):
    r"""A loss over rows, applied to scores pooled from the instances of each bag in the batch.

    The score of a bag is :math:`p(\frac1{|B|} \sum_{x \in B} y(x))` over the instances :math:`B` given for it
    (:mod:`moreauc.core.pooling` lists :math:`y` and :math:`p`). The inner loss treats these as scores of single rows.

    Nothing is stored for a bag between steps. If few instances are sampled, smoothed max and attention are biased,
    since :math:`p` is not linear; :class:`~moreauc.criteria.MIDAMLoss` and :class:`~moreauc.MultiInstanceTPAUCLoss`
    track the average for that reason.

    The baselines over bags are of this kind: with attention, :class:`~moreauc.criteria.AUCMinMaxLoss` is AUC-M (att),
    :class:`~moreauc.criteria.SOTAsLoss` is SOTA-s (att), and :class:`~moreauc.criteria.CrossEntropyLoss` is ABMIL
    (Ilse, Tomczak and Welling, Attention-based Deep Multiple Instance Learning, ICML 2018, arXiv:1802.04712).

    Args:
        criterion: a loss called as `criterion(scores, labels, index)`, made with the labels of the bags. One that
            needs previous scores gets those pooled from `previous_instances`.

    Shape:
        - instances, previous_instances: `(T,)`, scores of all instances of the batch; for attention `(T, 2)`, score and
          attention logit
        - bag, labels, index: as for :class:`~moreauc.MultiInstanceTPAUCLoss`
        - output: scalar

    Example:
        >>> from moreauc.criteria import CrossEntropyLoss
        >>> criterion = PooledLoss(CrossEntropyLoss([0, 1, 0, 1]), "attention")
        >>> instances = torch.tensor([[0.5, 0.0], [-0.5, 0.0], [2.0, 1.0]], requires_grad=True)
        >>> loss = criterion(instances, torch.tensor([0, 0, 1]), torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> loss.backward()
        >>> instances.grad.sign()
        tensor([[ 1.,  1.],
                [ 1., -1.],
                [-1.,  0.]])
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, criterion: nn.Module, pooling: PoolingName | Pooling, *, temperature: float = 0.1) -> None:
        super().__init__(criterion, "scores", "labels", "index")
        self.pooling = get_pooling(self._owner, pooling, temperature)

    @property
    def min_tpr(self) -> float:
        """Lower end of the true positive rate of the inner loss."""
        return self._of_criterion("min_tpr")

    @property
    def max_fpr(self) -> float:
        """Upper end of the false positive rate of the inner loss."""
        return self._of_criterion("max_fpr")

    def _batch(
        self,
        check: Check,
        instances: Tensor,
        bag: Tensor,
        labels: Tensor,
        index: Tensor,
        previous_instances: Tensor | None = None,
    ) -> _Bags:
        labels = as_labels(self._owner, labels)
        check_shape(self._owner, "labels", labels, [("B",)])
        index = as_index(self._owner, "index", index, len(labels))
        found = bag_instances(check, instances, bag, len(index), self.pooling, self.device)
        before = check.previous("instances", instances, previous_instances, self.training and self.needs_previous)
        check.finite(instances=instances, previous_instances=before)
        gated, gate = enter(found.values, check.late)
        past = None if before is None else check.clean(before.to(gated.dtype))
        return _Bags(check, found._replace(values=check.clean(gated)), labels, index, past, gate)

    def _step(self, batch: _Bags) -> Step:
        check, (values, bag, count), labels, index, before, gate = batch
        previous: dict[str, Tensor] = {}
        if before is not None:
            with torch.no_grad():
                previous["previous_scores"] = self.pooling(before, bag, count)
        scores = self.pooling(values, bag, count)
        return self._inner_step(check, values, gate, scores, labels, index, **previous)

    def _of_criterion(self, name: str) -> float:
        return float(getattr(self.criterion, name))
