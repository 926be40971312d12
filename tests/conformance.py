"""What every criterion must do. A new one joins by one entry in `CASES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moreauc.criteria import (
    AUCMinMaxLoss,
    AUCSquaredHingeLoss,
    AWPolyLoss,
    CrossEntropyLoss,
    ExponentiatedGroupDROLoss,
    FCCOLoss,
    GroupDROLoss,
    GroupedLoss,
    GroupERMLoss,
    MIDAMLoss,
    MiniBatchTPAUCLoss,
    MultiInstanceTPAUCLoss,
    PooledLoss,
    SampleCVaRLoss,
    SOTAsLoss,
    STACOLoss,
    TCCOLoss,
    TPAUCLoss,
)


@dataclass(frozen=True)
class Case:
    """A criterion, and batches for it.

    Attributes:
        build: make a fresh criterion.
        batch: step number -> keyword arguments of a call; float32 tensors, those in `values` may get gradients.
        values: names of the arguments that hold model outputs (the first gets the gradient).
        reorder: the same batch in another order of its items.
        tables: name of a table attribute -> row numbers that a batch visits, in that attribute's own indexing.
        state: names of the attributes that a call in training mode moves; none for a loss without memory.
        exact: those of them that always stay in float64.
        moves: whether a call in training mode changes the state, if `state` does not show it.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    values: tuple[str, ...]
    reorder: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    tables: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    state: tuple[str, ...] = ("u",)
    exact: tuple[str, ...] = ()
    moves: bool | None = None

    @property
    def has_state(self) -> bool:
        """Whether a call in training mode changes the state."""
        return bool(self.state) if self.moves is None else self.moves


def hinge(u: Tensor, index: Tensor) -> Tensor:
    return torch.relu(u.reshape(len(index), -1).sum(-1) - 0.1 * index)


def positive_part(v: Tensor, index: Tensor) -> Tensor:
    return torch.relu(v + 0.2)


class LearnedScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, v: Tensor, index: Tensor) -> Tensor:
        return torch.relu(self.scale * v)


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + step)


def _fcco_batch(dim: int) -> Callable[[int], dict[str, Tensor]]:
    def batch(step: int) -> dict[str, Tensor]:
        random = _generator(step)
        shape = (4,) if dim == 1 else (4, dim)
        return {
            "inner": torch.randn(shape, generator=random),
            "index": torch.randperm(11, generator=random)[:4],
            "previous_inner": torch.randn(shape, generator=random),
        }

    return batch


def _tcco_batch(step: int) -> dict[str, Tensor]:
    random = _generator(step)
    return {
        "h": torch.randn(3, 2, 2, generator=random),
        "outer_index": torch.randperm(6, generator=random)[:3],
        "inner_index": torch.randperm(5, generator=random)[:2],
        "previous_h": torch.randn(3, 2, 2, generator=random),
    }


def _reorder_fcco(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.flip(0) for name, value in batch.items()}


def _reorder_tcco(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.flip(0, 1) if value.ndim == 3 else value.flip(0) for name, value in batch.items()}


def _tcco_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    pairs = (batch["outer_index"][:, None] * 5 + batch["inner_index"]).flatten()
    return {"u": batch["outer_index"], "v": pairs}


LABELS = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0])


def _tpauc_batch(step: int) -> dict[str, Tensor]:
    random = _generator(step)
    positives, negatives = (LABELS == 1).nonzero().squeeze(1), (LABELS == 0).nonzero().squeeze(1)
    chosen = [rows[torch.randperm(len(rows), generator=random)[:3]] for rows in (positives, negatives)]
    index = torch.cat(chosen)[torch.randperm(6, generator=random)]
    return {
        "scores": torch.randn(6, generator=random),
        "labels": LABELS[index],
        "index": index,
        "previous_scores": torch.randn(6, generator=random),
    }


def _tpauc_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rows = _positive_rows(batch)
    return {"u": rows, "s": rows}


def _positive_rows(batch: dict[str, Tensor]) -> Tensor:
    return (LABELS.cumsum(0) - 1)[batch["index"][batch["labels"] == 1]]


def _baseline_batch(step: int) -> dict[str, Tensor]:
    return {name: value for name, value in _tpauc_batch(step).items() if name != "previous_scores"}


def _no_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {}


def _bags_batch(columns: int) -> Callable[[int], dict[str, Tensor]]:
    def batch(step: int) -> dict[str, Tensor]:
        random, rows = _generator(step), _tpauc_batch(step)
        shape = (14,) if columns == 1 else (14, columns)
        return {
            "instances": torch.randn(shape, generator=random),
            "bag": torch.cat([torch.arange(6), torch.randint(0, 6, (8,), generator=random)]),
            "labels": rows["labels"],
            "index": rows["index"],
            "previous_instances": torch.randn(shape, generator=random),
        }

    return batch


def _without_previous(batch: Callable[[int], dict[str, Tensor]]) -> Callable[[int], dict[str, Tensor]]:
    return lambda step: {name: value for name, value in batch(step).items() if not name.startswith("previous")}


def _reorder_bags(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: (5 - value).flip(0) if name == "bag" else value.flip(0) for name, value in batch.items()}


def _bag_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rows = _positive_rows(batch)
    return {"u": rows, "s": rows, "v": batch["index"]}


def _group_batch(step: int) -> dict[str, Tensor]:
    random = _generator(step)
    return {
        "losses": torch.randn(9, generator=random),
        "groups": torch.randint(0, 7, (9,), generator=random),
        "previous_losses": torch.randn(9, generator=random),
    }


def _member_batch(step: int) -> dict[str, Tensor]:
    return _group_batch(step) | {"groups": torch.rand(9, 7, generator=_generator(step)) < 0.2}


def _present_groups(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    groups = batch["groups"]
    return {"u": groups if groups.ndim == 1 else groups.any(0).nonzero().squeeze(1)}


WEIGHTS = [0.5 + k % 4 for k in range(len(LABELS))]
REGION = {"min_tpr": 0.3, "max_fpr": 0.6}
RAMP = {"surrogate": "smooth_ramp", "margin": 0.7, "link": "standardized"}

CASES = (
    [
        Case(
            name=f"FCCOLoss-{name}",
            build=lambda dim=dim, options=options: FCCOLoss(11, hinge, dim=dim, tau=0.4, **options),
            batch=_fcco_batch(dim),
            values=("inner", "previous_inner"),
            reorder=_reorder_fcco,
            tables=lambda batch: {"u": batch["index"]},
        )
        for name, dim, options in [
            ("moving-average", 1, {}),
            ("msvr", 1, {"gamma": 0.2}),
            ("theory", 3, {"gamma": "theory", "bound": 2.0}),
            ("initial", 1, {"gamma": 0.2, "initial": 0.5}),
        ]
    ]
    + [
        Case(
            name=f"TCCOLoss-{name}",
            build=lambda middle=middle, options=options: TCCOLoss(
                6, 5, hinge, middle(), dim_middle=2, dim_inner=2, tau1=0.4, tau2=0.3, **options
            ),
            batch=_tcco_batch,
            values=("h", "previous_h"),
            reorder=_reorder_tcco,
            tables=_tcco_rows,
        )
        for name, middle, options in [
            ("moving-average", lambda: positive_part, {}),
            ("msvr", lambda: positive_part, {"gamma1": 0.2, "gamma2": 0.3, "bound": 1.0}),
            ("learned-middle", LearnedScale, {"gamma1": "theory", "gamma2": "theory"}),
            ("moving-average-outer-msvr", lambda: positive_part, {"gamma2": 0.3}),
        ]
    ]
    + [
        Case(
            name=f"TPAUCLoss-{name}",
            build=lambda options=options: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, **options),
            batch=_tpauc_batch,
            values=("scores", "previous_scores"),
            reorder=_reorder_fcco,
            tables=_tpauc_rows,
        )
        for name, options in [
            ("moving-average", {}),
            ("msvr", {"gamma": 0.2, "surrogate": "logistic"}),
            ("theory", {"gamma": "theory", "tau": 0.5, "initial": 0.3}),
            ("ramp-msvr", {"gamma": 0.2, **RAMP}),
            ("sample-weights", {"gamma": 0.2, "sample_weight": WEIGHTS}),
            ("sample-weights-ramp", {"gamma": 0.2, "threshold_lr": "quantile", "sample_weight": WEIGHTS, **RAMP}),
        ]
    ]
    + [
        Case(
            name=f"MultiInstanceTPAUCLoss-{pooling}-{name}",
            build=lambda pooling=pooling, options=options: MultiInstanceTPAUCLoss(
                LABELS, min_tpr=0.3, max_fpr=0.6, pooling=pooling, temperature=0.5, **options
            ),
            batch=_bags_batch(2 if pooling == "attention" else 1),
            values=("instances", "previous_instances"),
            reorder=_reorder_bags,
            tables=_bag_rows,
            state=("u", "s", "v"),
            exact=("v",),
        )
        for pooling in ("mean", "smoothed_max", "attention")
        for name, options in [
            ("moving-average", {}),
            ("msvr", {"gamma": (0.1, 0.2, 0.3), "bound": 5.0}),
            ("theory", {"gamma": "theory", "tau": 0.5}),
            ("moving-average-outer-msvr", {"gamma": (0.0, 0.0, 0.3)}),
            ("update-after", {"gamma": 0.1, "update_order": "after"}),
            ("ramp-msvr", {"gamma": 0.1, **RAMP}),
        ]
    ]
    + [
        Case(
            name=f"{kind.__name__}-{name}",
            build=lambda kind=kind, options=options: kind(LABELS, **options),
            batch=_baseline_batch,
            values=("scores",),
            reorder=_reorder_fcco,
            tables={
                SOTAsLoss: lambda batch: {"log_u": _positive_rows(batch)},
                STACOLoss: lambda batch: dict.fromkeys(("y", "s"), _positive_rows(batch)),
            }.get(kind, _no_rows),
            state=state,
        )
        for kind, name, options, state in [
            (CrossEntropyLoss, "plain", {}, ()),
            (CrossEntropyLoss, "weighted", {"positive_weight": "balanced", "sample_weight": WEIGHTS}, ()),
            (AUCSquaredHingeLoss, "default", {}, ()),
            (AUCSquaredHingeLoss, "ramp", {**RAMP, "sample_weight": WEIGHTS}, ()),
            (AUCMinMaxLoss, "default", {"dual_lr": 0.5}, ("a", "b", "theta")),
            (MiniBatchTPAUCLoss, "default", {"min_tpr": 0.3, "max_fpr": 0.6}, ()),
            (MiniBatchTPAUCLoss, "ramp", {"min_tpr": 0.3, "max_fpr": 0.6, **RAMP}, ()),
            (MiniBatchTPAUCLoss, "sample-weights", {"min_tpr": 0.3, "max_fpr": 0.6, "sample_weight": WEIGHTS}, ()),
            (AWPolyLoss, "default", {"power": 0.1}, ()),
            (SOTAsLoss, "default", {"temperature_negatives": 0.1}, ("log_u", "log_v")),
            (SOTAsLoss, "logistic", {"surrogate": "logistic", "link": "identity", "tau1": 0.4}, ("log_u", "log_v")),
            (STACOLoss, "default", {**REGION, "threshold_lr": (0.3, 5.0)}, ("y", "s", "s_prime")),
            (STACOLoss, "ramp", {**REGION, "threshold_lr": (0.3, 1.0), **RAMP}, ("y", "s", "s_prime")),
        ]
    ]
    + [
        Case(
            name=f"GroupDROLoss-{name}",
            build=lambda options=options: GroupDROLoss(7, top_k=2, **options),
            batch=batch,
            values=("losses", "previous_losses"),
            reorder=_reorder_fcco,
            tables=_present_groups,
            state=("u", "s"),
        )
        for name, batch, options in [
            ("moving-average", _group_batch, {}),
            ("msvr", _group_batch, {"gamma": 0.2, "threshold_lr": "quantile"}),
            ("theory", _group_batch, {"gamma": "theory", "tau": 0.5, "initial": 0.3}),
            ("memberships", _member_batch, {"gamma": "theory", "tau": 0.5}),
        ]
    ]
    + [
        Case(
            name=f"{kind.__name__}-{name}",
            build=lambda kind=kind, options=options: kind(**options),
            batch=batch,
            values=("losses",),
            reorder=_reorder_fcco,
            tables=_no_rows,
            state=state,
        )
        for kind, name, options, batch, state in [
            (GroupERMLoss, "plain", {"num_groups": 7}, _group_batch, ()),
            (GroupERMLoss, "weighted", {"num_groups": 7, "group_sizes": [1, 2, 3, 4, 5, 6, 7]}, _member_batch, ()),
            (ExponentiatedGroupDROLoss, "ids", {"num_groups": 7, "step": 0.5}, _group_batch, ("weights",)),
            (ExponentiatedGroupDROLoss, "memberships", {"num_groups": 7}, _member_batch, ("weights", "log_weights")),
            (SampleCVaRLoss, "default", {"fraction": 0.3}, _group_batch, ()),
        ]
    ]
    + [
        Case(
            name=f"MIDAMLoss-{pooling}-{name}",
            build=lambda pooling=pooling, options=options: MIDAMLoss(LABELS, pooling=pooling, **options),
            batch=_without_previous(_bags_batch(2 if pooling == "attention" else 1)),
            values=("instances",),
            reorder=_reorder_bags,
            tables=lambda batch: {"v": batch["index"]},
            state=("a", "b", "theta", "v"),
            exact=("v",),
        )
        for pooling, name, options in [
            ("mean", "default", {}),
            ("smoothed_max", "update-after", {"update_order": "after", "dual_lr": 0.5}),
            ("attention", "default", {"tau": 0.5}),
        ]
    ]
    + [
        Case(
            name=f"PooledLoss-{name}",
            build=lambda inner=inner, pooling=pooling: PooledLoss(inner(), pooling),
            batch=_bags_batch(2 if pooling == "attention" else 1),
            values=("instances", "previous_instances"),
            reorder=_reorder_bags,
            tables=_no_rows,
            state=(),
            moves=moves,
        )
        for name, inner, pooling, moves in [
            ("moving-average-cross-entropy", lambda: CrossEntropyLoss(LABELS), "smoothed_max", False),
            ("moving-average-min-max", lambda: AUCMinMaxLoss(LABELS, dual_lr=0.5), "attention", True),
            ("msvr", lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, gamma=0.1), "mean", True),
        ]
    ]
    + [
        Case(
            name=f"GroupedLoss-{name}",
            build=build,
            batch=_tpauc_batch,
            values=("scores", "previous_scores"),
            reorder=_reorder_fcco,
            tables=_no_rows,
            state=(),
            moves=name == "msvr",
        )
        for name, build in [
            ("moving-average", lambda: GroupedLoss(GroupERMLoss(3, group_sizes=[5, 5, 5]), torch.arange(15) % 3)),
            ("msvr", lambda: GroupedLoss(GroupDROLoss(3, top_k=1, gamma=0.2), torch.arange(15) % 3)),
        ]
    ]
)


def with_nan(values: Tensor) -> Tensor:
    first = torch.arange(len(values), device=values.device).reshape(-1, *[1] * (values.ndim - 1)) == 0
    return torch.where(first, torch.nan, values)


# what is wrong with the values of a call: the argument (or its number among the case's values), the change, the error
MISTAKES: dict[str, tuple[int | str, Callable[[Tensor], Tensor], str]] = {
    "nan": (0, with_nan, "must be finite, got nan"),
    "infinity": (0, lambda x: x / 0, "must be finite, got -?(inf|nan)"),
    "previous": (1, with_nan, "must be finite, got nan"),
    "negative": ("index", lambda x: x - 20, r"must lie in \[0, \d+\), got -\d+; .*numbe"),
    "too large": ("index", lambda x: x + 20, r"must lie in \[0, \d+\), got \d\d; .*numbe"),
    "repeated": ("index", lambda x: x[:1].expand(len(x)), "must not repeat a row inside one batch"),
    "outer": ("outer_index", lambda x: x + 20, r"outer_index must lie in \[0, 6\), got 2\d"),
    "outer twice": ("outer_index", lambda x: x[:1].expand(len(x)), "outer_index must not repeat a row"),
    "inner": ("inner_index", lambda x: x - 20, r"inner_index must lie in \[0, 5\), got -"),
    "inner twice": ("inner_index", lambda x: x[:1].expand(len(x)), "inner_index must not repeat a row"),
    "pairs twice": ("inner_index", lambda x: x[:1].expand(3, len(x)), "must not repeat a row"),
    "label": ("labels", lambda x: x + 1, "labels must be 0 or 1, got 2"),
    "other class": ("labels", lambda x: 1 - x, "index must point to rows labelled as in labels"),
    "bag": ("bag", lambda x: x - 1, r"bag must lie in \[0, 6\), got -1"),
    "bag too large": ("bag", lambda x: x + 1, r"bag must lie in \[0, 6\), got 6"),
    "no instance": ("bag", lambda x: x.clamp_max(4), "bag must name at least one instance of every bag"),
    "group": ("groups", lambda x: x + 7, r"groups must lie in \[0, 7\), got"),
    "membership": ("groups", lambda x: 2.0 * torch.ones(9, 7), "groups must hold memberships, 0 or 1, got 2"),
    "no group": ("groups", lambda x: torch.zeros(9, 7), "groups must give at least one sample a group, got none"),
}


def can_be_made(case: Case, mistake: str) -> bool:
    where = MISTAKES[mistake][0]
    if mistake == "other class" and case.name.startswith("GroupedLoss"):
        return False  # any label will do there
    if where == 1:
        return bool(case.build().needs_previous)
    if where == "groups" and case.name.startswith("SampleCVaR"):
        return False  # not looked at
    if mistake == "group" and case.batch(0).get("groups", LABELS).ndim == 2:
        return False
    return where == 0 or where in case.batch(0)


POSSIBLE_MISTAKES = [(case, mistake) for case in CASES for mistake in MISTAKES if can_be_made(case, mistake)]
