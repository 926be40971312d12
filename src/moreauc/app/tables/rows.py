"""Tables whose rows have two classes; what bags share with them is in :class:`TwoClassTask`."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score, roc_curve

from moreauc._checks import floor_count
from moreauc.app.report.pages import Fact, Section, draw_histograms, draw_precision_recall, draw_roc, draw_training
from moreauc.app.report.verdict import (
    Evaluated,
    Verdict,
    compare_models,
    histories_of,
    importance_section,
    kept_epoch,
    warning_text,
)
from moreauc.app.tables.base import (
    Cells,
    Inputs,
    Scorer,
    Sections,
    Split,
    T,
    Table,
    TableTask,
    Tested,
    TwoClassModel,
    num_resamples,
    read_features,
)
from moreauc.app.tables.targets import Target, match_target, split_target
from moreauc.data.duplicates import Hashes, any_equal, number_equal, take_together
from moreauc.data.tables import TableError
from moreauc.metrics import tpauc_score
from moreauc.metrics.bootstrap import BootstrapInterval, resample_scores
from moreauc.metrics.ranking import tied_share, ties_text
from moreauc.tasks.base import Array

if TYPE_CHECKING:
    from moreauc.app.cli.options import FitOptions

_LOGGER = logging.getLogger("moreauc.app.cli.fit")
_COLUMNS = ("method", "TPAUC", "95 % interval", "AUC", "TPR at budget", "TPR", "FPR", "precision", "alerts per 1,000")
_PRINTED = (0, 1, 2, 3, 5, 6, 7)  # what fits in a terminal
_EXPLANATION = (
    "TPAUC is the share of correctly ordered pairs among the lowest positives and the highest negatives of the region, "
    "with the 95 % bootstrap interval over test {unit} (training data and seed held fixed). TPR at budget is the "
    "highest true positive rate that any threshold reaches on these {unit} within the false-positive budget. The other "
    "numbers are those of the model's own threshold, which was fixed in training: true and false positive rate, share "
    "of positives among the {unit} it calls positive, and how many of 1,000 {unit} these are."
)
_FEW_POSITIVES = 100  # in the test part
_LEAST_POSITIVES = 50  # in the training part
_FITTED, _OVERFITTED = 0.8, 0.2  # TPAUC of training rows, and how far it is above that of test rows
_MOST_TRAINING = 5000  # training rows or bags to score for this
_TELLING = 0.01  # half an interval of differences, below which models are the same for all that counts


@dataclass(frozen=True)
class Evaluation(Evaluated):
    """Scores of one model on labelled rows or bags."""

    tpauc: BootstrapInterval  # TPAUC with its bootstrap interval
    auc: float  # area under the whole curve
    tpr_at_budget: float  # highest true positive rate at a false positive rate of at most the budget
    threshold: float  # the model's own threshold; a higher score is a positive decision
    tpr: float  # true positive rate there
    fpr: float  # false positive rate there
    tied: float  # share of the region's rows whose score is also that of a row of the other class
    precision: float  # share of positives among what is called positive there; NaN where nothing is
    alerts: float  # how many of 1,000 rows or bags are called positive there
    unit: str  # what is scored, "rows" or "bags"
    scores: Array  # of the rows or bags, shape `(n,)`
    screening: dict[str, float] | None = None  # enrichment and BEDROC of molecules

    @property
    def warnings(self) -> list[str]:
        text = ties_text(self.tied, unit=self.unit)
        return [] if text is None else [f"{self.title}: {text}"]

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a printed table."""
        interval = f"[{self.tpauc.low:.3f}, {self.tpauc.high:.3f}]"
        rates = [f"{rate:.4f}" for rate in (self.auc, self.tpr_at_budget, self.tpr, self.fpr)]
        precision = "-" if math.isnan(self.precision) else f"{self.precision:.4f}"
        return (self.title, f"{self.tpauc.estimate:.4f}", interval, *rates, precision, f"{self.alerts:.1f}")

    def to_dict(self) -> dict[str, object]:
        left_out = ("scores", "resamples", *(() if self.screening else ("screening",)))
        return {key: value for key, value in asdict(self).items() if key not in left_out}


def evaluate_scores(
    title: str,
    labels: Array,
    scores: Array,
    *,
    min_tpr: float,
    max_fpr: float,
    budget: float | None = None,
    unit: str = "rows",
) -> Evaluation:
    """Return the numbers of one model whose decisions turn at a score of 0; the budget is `max_fpr` by default."""
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    number = num_resamples(len(labels))
    resamples = resample_scores(tpauc_score, labels, scores, min_tpr=min_tpr, max_fpr=max_fpr, resamples=number)
    called = scores > 0
    return Evaluation(
        title=title,
        tpauc=resamples.interval(),
        auc=float(roc_auc_score(labels, scores)),
        tpr_at_budget=float(tpr[fpr <= (max_fpr if budget is None else budget) + 1e-12].max()),
        threshold=0.0,
        tpr=float(called[labels == 1].mean()),
        fpr=float(called[labels == 0].mean()),
        tied=tied_share(labels, scores, min_tpr=min_tpr, max_fpr=max_fpr),
        precision=float(labels[called].mean()) if called.any() else math.nan,
        alerts=1000.0 * float(called.mean()),
        unit=unit,
        scores=scores,
        resamples=resamples,
    )


@dataclass(frozen=True)
class TwoClassTask(TableTask[T, TwoClassModel, Evaluation]):
    """A table with two classes, scored by the two-way partial AUC."""

    role: ClassVar[str] = "row"  # of a line of predictions
    measure = "TPAUC"

    target: Target  # which column and value is the positive class
    min_tpr: float  # lower edge of the region
    max_fpr: float  # upper edge of the region
    fpr_budget: float | None = field(default=None, kw_only=True)  # of the decisions; None for `max_fpr`

    @property
    def budget(self) -> float:
        """Largest false positive rate of the decisions."""
        return self.max_fpr if self.fpr_budget is None else self.fpr_budget

    def draw_test(self, table: T, share: float, seed: int, hashes: Hashes) -> Array:
        return draw_test_rows(table.targets, share, seed, hashes, unit=self.unit)

    def labels(self, frame: pd.DataFrame, source: str, labelled: bool) -> Array:
        """Return the labels of rows, or of bags by a row of each; zeros where they are not there."""
        if not labelled:
            return np.zeros(len(frame), dtype=np.int64)
        return match_target(frame, self.target, source=source, unit=self.unit)[1]

    def check_test(self, targets: Array, where: str) -> None:
        check_region_holds(targets, where, min_tpr=self.min_tpr, max_fpr=self.max_fpr, unit=self.unit)

    @property
    def announcement(self) -> str:
        return f"Positive class: {self.target.name} = {self.target.positive} ({self.target.reason})"

    def facts(self) -> dict[str, object]:
        target = self.target
        return {"target": {"column": target.name, "positive": target.positive, "negative": target.negative}}

    def description(self) -> str:
        target = self.target
        return (
            f"target {target.name}, positive class {target.positive} ({target.reason}), other class {target.negative}"
        )

    def counts(self, table: T) -> dict[str, int]:
        positives, number = int(table.targets.sum()), len(table)
        return {self.unit: number, "positives": positives, "negatives": number - positives}

    def count_cells(self, name: str, table: T) -> dict[str, str]:
        share = {"share of positives": f"{table.targets.mean():.2%}"}
        return super().count_cells(name, table) | share

    def headline(self, table: T) -> str:
        return f"{len(table)} {self.unit}, {table.targets.sum()} positives"

    def evaluate(self, title: str, model: Scorer, inputs: Inputs, table: T) -> Evaluation:
        scores = model.decision_function(inputs)
        region = {"min_tpr": self.min_tpr, "max_fpr": self.max_fpr}
        evaluation = evaluate_scores(title, table.targets, scores, **region, budget=self.budget, unit=self.unit)
        tpauc, interval = evaluation.tpauc.estimate, evaluation.row[2]
        _LOGGER.info("%s: TPAUC %.4f %s, AUC %.4f", title, tpauc, interval, evaluation.auc)
        for line in evaluation.warnings:
            _LOGGER.warning("%s", line)
        return evaluation

    def goodness(self, model: TwoClassModel, table: T) -> float:
        scores = model.decision_function(self.inputs(table))
        return tpauc_score(table.targets, scores, min_tpr=self.min_tpr, max_fpr=self.max_fpr)

    def sample(self, table: T, number: int, random: np.random.Generator) -> Array:
        order = random.permutation(len(table))
        positive = table.targets[order] == 1
        found = order[positive][: number // 2]
        return np.sort(np.concatenate([found, order[~positive][: number - len(found)]]))

    def printed(self, title: str, evaluations: Sequence[Evaluation]) -> list[Cells]:
        rows = [tuple(evaluation.row[place] for place in _PRINTED) for evaluation in evaluations]
        return [(title, tuple(_COLUMNS[place] for place in _PRINTED), rows)]

    def result(self, tested: Tested[T, TwoClassModel, Evaluation]) -> Sections:
        evaluations, table = tested.evaluations, tested.table
        first, unit = evaluations[0], self.unit
        verdict = compare_models(evaluations, self.measure, unit)
        doubts = warning_text([*tested.notes, *(line for evaluation in evaluations for line in evaluation.warnings)])
        text = [*verdict.text, self._decisions(first), *self._advice(verdict, tested)]
        region = f"TPR ≥ {self.min_tpr:g}, FPR ≤ {self.max_fpr:g}"
        interval = f"95 %: {first.tpauc.low:.3f} to {first.tpauc.high:.3f}"
        chance = f"random scores: {_chance(self.min_tpr, self.max_fpr):.2f}"
        called = f"of the {unit} called positive are"
        facts = [
            Fact(f"TPAUC, {region}", f"{first.tpauc.estimate:.3f}", f"{interval}; {chance}"),
            Fact("Found", f"{first.tpr:.1%}", f"of the positives (TPR), at an FPR of {first.fpr:.3f}"),
            Fact("Precision", "-" if math.isnan(first.precision) else f"{first.precision:.1%}", called),
            Fact(f"Alerts per 1,000 {unit}", f"{first.alerts:.0f}", f"{table.targets.mean():.1%} are positive"),
            Fact("AUC", f"{first.auc:.3f}", "the whole curve"),
        ]
        rows = [evaluation.row for evaluation in evaluations]
        scores = {evaluation.title: evaluation.scores for evaluation in evaluations}
        images = [
            draw_roc(table.targets, scores, min_tpr=self.min_tpr, max_fpr=self.max_fpr),
            draw_precision_recall(table.targets, scores, threshold=0.0),
            draw_histograms(table.targets, first.scores, threshold=0.0),
        ]
        columns, numbers = self.explain(tested)
        sections = [
            Section("Verdict", [*text, *doubts], facts=facts),
            Section("Methods", [_EXPLANATION.format(unit=unit)], columns=_COLUMNS, rows=rows, labels=1),
            Section("Curves and scores", images=images),
            *columns,
        ]
        return sections, {"verdict": {**verdict.to_dict(), "description": text}, **numbers}

    def explain(self, tested: Tested[T, TwoClassModel, Evaluation]) -> Sections:
        """Return the sections of a report on what the scores of the model go by, and their numbers."""
        return importance_section(self, tested.model, tested.table)

    def _decisions(self, first: Evaluation) -> str:
        """Return a sentence on the decisions of a model: alerts, precision, rates."""
        if not first.alerts:
            return f"{first.title} calls none of these {self.unit} positive."
        return (
            f"At its threshold {first.title} calls {first.alerts:.0f} of 1,000 {self.unit} positive: "
            f"{first.precision:.0%} of these are, and {first.tpr:.0%} of all positives are among them. The false "
            f"positive rate is {first.fpr:.3f}; the budget is {self.budget:g}."
        )

    def _advice(self, verdict: Verdict, tested: Tested[T, TwoClassModel, Evaluation]) -> list[str]:
        """Return what to try next, by the results in docs/when_it_pays.md."""
        model, table, train = tested.model, tested.table, tested.train
        positives = int(table.targets.sum())
        if verdict.difference is None or train is None:
            return []
        lines = {
            "better": f"keep the model, and let `moreauc compare` repeat the comparison on other {self.unit}.",
            "worse": f"{self._other_model(model)}; where that is no better, use {verdict.other}.",
            "equal": f"take the simpler of the two, or {self._other_model(model)}.",
        }
        text = f"Next: {lines[verdict.outcome]}"
        half = (verdict.difference.high - verdict.difference.low) / 2.0
        if verdict.outcome == "equal" and positives < _FEW_POSITIVES and half >= _TELLING:
            text += (
                f" With {positives} positives to test on, only differences above about {half:.2f} show: a larger "
                f"--test-size, or a table to --test on, tells more."
            )
        return [text, *self._limits(model, table, train)]

    def _limits(self, model: TwoClassModel, table: T, train: T) -> list[str]:
        """Return limits of the data that no loss can change."""
        positives, lines = int(train.targets.sum()), []
        if positives < _LEAST_POSITIVES:
            lines.append(
                f"With {positives} positives to train on no loss gained in our studies: logistic regression, or trees "
                "tuned by validation, are hard to beat."
            )
        random = np.random.default_rng(0)
        some = train if len(train) <= _MOST_TRAINING else train.part(self.sample(train, _MOST_TRAINING, random))
        own, others = self.goodness(model, some), self.goodness(model, table)
        if own > _FITTED and own - others > _OVERFITTED:
            lines.append(
                f"The model fits its training {self.unit} much better than these (TPAUC {own:.2f} against "
                f"{others:.2f}): more {self.unit}, --patience or a simpler model help more than another loss."
            )
        return lines

    def _other_model(self, model: TwoClassModel) -> str:
        """Return which other model to try."""
        if model.describe().candidates:
            return f"collect more {self.unit} or columns: linear, forest, trees and network have been tried"
        return "try --model auto, which also has a forest and boosted trees"

    def training(self, models: Mapping[str, TwoClassModel], split: Split[T]) -> tuple[Section, dict[str, object]]:
        histories = histories_of(models)
        text = [f"{title}: {model.describe().summary}." for title, model in models.items() if title not in histories]
        for title, history in histories.items():
            if history.best_epoch is None:
                text.append(f"{title}: too few {self.unit} to hold any out; the weights of the last epoch were kept.")
            else:
                choice = f" ({history.choice})" if history.choice else ""
                best = f"{history.best_score:.4f} {kept_epoch(history)}{choice}"
                text.append(f"{title}: best validation TPAUC {best}; these weights were kept.")
            members = len(models[title].describe().histories)
            if members > 1:
                text.append(f"{title} is the mean of {members} such networks; shown is the first.")
        return Section("Training", text, images=draw_training(histories) if histories else ()), {}

    @abstractmethod
    def names(self, table: T) -> Array | list[str]:
        """Return the names of the rows or bags in a file of predictions."""

    def predict(self, model: TwoClassModel, inputs: Inputs, table: T) -> tuple[pd.DataFrame, str]:
        found = self.predictions(model, inputs, self.names(table))
        number, target = int((found["score"] > 0).sum()), self.target
        return found, f"{number} of {len(found)} {self.unit} are called {target.name} = {target.positive}"

    def predictions(self, model: TwoClassModel, inputs: Inputs, names: Array | pd.Index | list[str]) -> pd.DataFrame:
        """Return name, score, probability and decision of rows or bags."""
        scores = model.decision_function(inputs)
        columns = {
            self.role: names,
            "score": scores,
            "probability": model.predict_proba(inputs)[:, 1],
            "decision": np.where(scores > 0, self.target.positive, self.target.negative),
        }
        return pd.DataFrame(columns)


@dataclass(frozen=True)
class RowTableTask(TwoClassTask[Table]):
    """A table whose rows are classified."""

    name = "rows"
    default = "sonx"
    baselines = ("lr",)

    @classmethod
    def read(cls, frame: pd.DataFrame, options: FitOptions, *, source: str) -> tuple[Self, Table]:
        rest, labels, target = split_target(frame, options.target, positive=options.positive, source=source)
        features, identity = read_features(rest, options, source)
        task = cls(features.schema, target, *options.region, fpr_budget=options.fpr_budget, id_column=identity)
        return task, Table(features, labels)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> Table:
        labels = self.labels(frame, source, labelled)
        if labelled:
            self.check_test(labels, source)
        return Table(self.schema.match(frame, source=source), labels)

    def names(self, table: Table) -> Array:
        numbers: Array = table.features.index.to_numpy() + 1
        return numbers


def _chance(min_tpr: float, max_fpr: float) -> float:
    """Return the TPAUC of random scores: the share of the region below the diagonal of the ROC curve."""
    return max(max_fpr - min_tpr, 0.0) ** 2 / (2.0 * (1.0 - min_tpr) * max_fpr)


def check_region_holds(labels: Array, where: str, *, min_tpr: float, max_fpr: float, unit: str = "rows") -> None:
    """Check that the region holds a positive and a negative among 0/1 labels of rows, named `where` in errors."""
    positives = int(np.sum(labels))
    for name, count, option, value, share, other in (
        ("positive", positives, "--min-tpr", min_tpr, 1.0 - min_tpr, "lower"),
        ("negative", len(labels) - positives, "--max-fpr", max_fpr, max_fpr, "higher"),
    ):
        if not count:
            raise TableError(f"{where}: there are no {name}s among {len(labels)} {unit}")
        if not floor_count(count, share):
            rows = f"{count} {name}{'s' if count > 1 else ''}"
            none = f"{option} {value:g} leaves none in the region; TPAUC is undefined"
            raise TableError(f"{where}: with {rows}, {none}; give a {other} one")


def draw_test_rows(labels: Array, share: float, seed: int, hashes: Hashes, *, unit: str = "rows") -> Array:
    """Draw a share of either class; return the numbers of the rows (or bags), in order; equal ones stay together."""
    random, same = np.random.default_rng(seed), number_equal(hashes)
    if any_equal(same):
        held = take_together(same, labels, share, random)
    else:
        held = np.zeros(len(labels), dtype=bool)
        for label in (1, 0):
            rows = np.flatnonzero(labels == label)
            held[random.choice(rows, round(share * len(rows)), replace=False)] = True
    for label, name in ((1, "positives"), (0, "negatives")):
        own = held[labels == label]
        if own.all() or not own.any():
            part, count = "training" if len(own) and own.all() else "test", round(share * len(own))
            why = f"the table has {len(own)}, of which --test-size {share:g} takes {count}"
            if count not in (0, len(own)):
                why = (
                    f"equal {unit} stay together, and the table has only {int(same.max()) + 1} different among "
                    f"{len(same)}; give a table to test on with --test"
                )
            raise TableError(f"no {name} in the {part} split: {why}")
    return np.flatnonzero(held)
