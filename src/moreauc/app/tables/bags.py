"""Tables of instances that a column puts into bags."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd

from moreauc.app.report.pages import Section, as_image
from moreauc.app.tables.base import Sections, Table, Tested, TwoClassModel, read_features
from moreauc.app.tables.rows import Evaluation, TwoClassTask
from moreauc.app.tables.targets import check_present, split_target
from moreauc.data import FlatBags
from moreauc.data.bags import Bags
from moreauc.data.duplicates import Hashes, hash_bags, hash_rows
from moreauc.data.tables import TableError
from moreauc.data.tabular import TableEncoder
from moreauc.data.texts import class_text, name_texts, normal_text
from moreauc.tasks.base import Array

if TYPE_CHECKING:
    from moreauc.app.cli.options import FitOptions
    from moreauc.estimators import MultiInstanceClassifier

_MOST = 10  # instances shown of a bag
_BEST = ("best scored positive bag", "No other positive bag has a higher score.")
_HARDEST = ("hardest bag", "No other bag is farther on the wrong side of the threshold, or nearer to it.")
_MEANING = (
    "The weight is what an instance counts in the score of the bag, 1 for all together. The contribution is the weight "
    "times the distance of the instance's score from the threshold: above 0 it is evidence for the positive class, "
    "below 0 against it."
)


@dataclass(frozen=True)
class BagTable(Table):
    """Rows of a table, grouped into bags in the order in which these first appear; `targets` are those of the bags."""

    codes: Array  # number of each row's bag
    names: list[str]  # of the bags

    def part(self, numbers: Array) -> Self:
        new = np.full(len(self), -1)
        new[numbers] = np.arange(len(numbers))
        codes = new[self.codes]
        kept = codes >= 0
        names = [self.names[bag] for bag in numbers]
        return replace(
            self, features=self.features[kept], targets=self.targets[numbers], codes=codes[kept], names=names
        )

    def hashes(self) -> Hashes:
        return hash_bags(hash_rows(self.features), self.codes, len(self))

    @cached_property
    def rows(self) -> list[Array]:
        """Rows of the file, counted from 1, that each bag consists of."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.bincount(self.codes, minlength=len(self)).cumsum()
        return np.split(self.features.index.to_numpy()[order] + 1, ends[:-1])


@dataclass(frozen=True)
class BagTableTask(TwoClassTask[BagTable]):
    """A table of instances whose bags are classified."""

    name = "bags"
    unit = "bags"
    default = "sont_att"
    baselines = ("lr_bags",)
    role = "bag"

    column: str  # names the bag of each row
    instance_encoder: TableEncoder | None = None  # turns rows into what the classifier takes; None before training

    @classmethod
    def read(cls, frame: pd.DataFrame, options: FitOptions, *, source: str) -> tuple[Self, BagTable]:
        column, name = normal_text(str(options.bags)), normal_text(options.target)
        if column == name:
            raise TableError(f"--bags and --target must name two columns, got {column!r} for both")
        codes, names, first = find_bags(frame, column, source)
        # Classes are counted by bags: the rarer one of these is the positive one, whatever the sizes of the bags.
        _, labels, target = split_target(frame.iloc[first], name, positive=options.positive, source=source, unit="bags")
        _check_agreement(frame, name, codes, names, first, source)
        features, _ = read_features(frame.drop(columns=[column, name]), options, source)
        task = cls(features.schema, target, *options.region, column, fpr_budget=options.fpr_budget)
        return task, BagTable(features, labels, codes, names)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> BagTable:
        codes, names, first = find_bags(frame, self.column, source)
        labels = self.labels(frame.iloc[first], source, labelled)
        if labelled:
            _check_agreement(frame, self.target.name, codes, names, first, source)
            self.check_test(labels, source)
        return BagTable(self.schema.match(frame, source=source), labels, codes, names)

    def fitted(self, train: BagTable) -> Self:
        return replace(self, instance_encoder=TableEncoder(owner="fit").fit(train.features))

    def encoder(self) -> TableEncoder:
        """Return the encoder, fitted to the training rows."""
        if self.instance_encoder is None:
            raise ValueError("BagTableTask: the encoder must be fitted, got a task that was not")
        return self.instance_encoder

    def inputs(self, table: BagTable) -> FlatBags:
        encoded = self.encoder().transform(table.features)
        return FlatBags.from_ids(encoded, table.codes, table.targets[table.codes])

    def facts(self) -> dict[str, object]:
        return {"bags": self.column, **super().facts()}

    def description(self) -> str:
        return f"bags by {self.column}, {super().description()}"

    def counts(self, table: BagTable) -> dict[str, int]:
        return {**super().counts(table), "instances": len(table.codes)}

    def names(self, table: BagTable) -> list[str]:
        return table.names

    def result(self, tested: Tested[BagTable, TwoClassModel, Evaluation]) -> Sections:
        sections, further = super().result(tested)
        evaluations, table = tested.evaluations, tested.table
        classifier, bags = cast("MultiInstanceClassifier", tested.model), cast(Bags, tested.inputs)
        distance, positive = evaluations[0].scores, table.targets == 1
        best = int(np.argmax(np.where(positive, distance, -np.inf)))
        hardest = int(np.argmax(np.where(positive, -distance, distance)))
        shown = []
        for bag, (role, why) in ((best, _BEST), (hardest, _HARDEST)):
            found = self.instances(classifier, bags, table, bag)
            entry = {"role": role, "why": why, "bag": table.names[bag], "size": len(found)}
            entry |= {"label": int(table.targets[bag]), "distance": float(distance[bag])}
            sections.append(_instance_section(entry, found, evaluations[0].title))
            heaviest = found.iloc[_by_weight(found)].rename(columns={"row": "rows"})
            shown.append({**entry, **heaviest.to_dict("list")})
        return sections, {**further, "instances": shown}

    def row_targets(self, table: BagTable) -> Array:
        return super().row_targets(table)[table.codes]

    def _other_model(self, model: TwoClassModel) -> str:
        return "try another pooling with --loss sont_smx or sont_mean, or trees with --baselines forest_bags"

    def instances(self, model: MultiInstanceClassifier, bags: Bags, table: BagTable, bag: int) -> pd.DataFrame:
        """Return row of the file, score, weight and contribution of each instance of a bag."""
        found = model.instance_scores(bags.instances(bag))
        numbers = {"score": found.score, "weight": found.weight, "contribution": found.contribution}
        return pd.DataFrame({"row": table.rows[bag], **numbers})

    def predict_instances(self, model: MultiInstanceClassifier, bags: Bags, table: BagTable) -> pd.DataFrame:
        """Return bag, row of the file, score and weight of every instance."""
        parts = [self.instances(model, bags, table, bag).drop(columns="contribution") for bag in range(len(table))]
        for name, part in zip(table.names, parts, strict=True):
            part.insert(0, "bag", name)
        return pd.concat(parts, ignore_index=True)


def find_bags(frame: pd.DataFrame, column: str, source: str) -> tuple[Array, list[str], Array]:
    """Return the number of each row's bag, the names of the bags, and the first row of each."""
    texts = name_texts(check_present(frame, normal_text(column), "bag column", source))
    codes, names = pd.factorize(texts)
    return codes, [str(name) for name in names], np.unique(codes, return_index=True)[1]


def _check_agreement(
    frame: pd.DataFrame, target: str, codes: Array, names: list[str], first: Array, source: str
) -> None:
    """Check that all rows of a bag have its label."""
    texts = name_texts(check_present(frame, target, "target", source), class_text).to_numpy()
    other = np.flatnonzero(texts != texts[first][codes])
    if len(other):
        row, begin = other[0], first[codes[other[0]]]
        raise TableError(
            f"{source}: target {target!r} must be the same inside a bag, got {texts[begin]} in row {begin + 1} and "
            f"{texts[row]} in row {row + 1} of bag {names[codes[row]]!r}"
        )


def _by_weight(found: pd.DataFrame) -> Array:
    """Return the numbers of the heaviest instances of a bag, which may have hundreds of thousands."""
    return np.argsort(-found["weight"].to_numpy(), kind="stable")[:_MOST]


def _instance_section(entry: dict[str, Any], found: pd.DataFrame, title: str) -> Section:
    from moreauc.app.report.bag_figures import plot_instance_weights  # here, since it loads matplotlib

    above = entry["distance"] > 0
    side = f"{abs(entry['distance']):.3g} {'above' if above else 'below'} the threshold"
    right = "correctly" if above == bool(entry["label"]) else "wrongly"
    kind = f"a {'positive' if entry['label'] else 'negative'} of {len(found)} instance{'s' * (len(found) > 1)}"
    verdict = f"{entry['bag']}, {kind}: its score is {side}, {right}. {entry['why']}"
    caption = f"Weights of the instances of {entry['bag']} by {title}; instances are counted from 0 inside the bag."
    figure = plot_instance_weights(found["score"], found["weight"], limit=_MOST)
    numbers = ("weight", "score", "contribution")
    rows = []
    for number in _by_weight(found):
        instance = found.iloc[number]
        rows.append((str(number), f"{instance['row']:.0f}", *(f"{instance[name]:.4f}" for name in numbers)))
    return Section(
        f"Instances of the {entry['role']}",
        [verdict, _MEANING],
        columns=("instance", "row of the table", *numbers),
        rows=rows,
        labels=0,
        images=[as_image(figure, caption)],
    )
