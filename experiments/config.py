"""Plans of the experiments: the only reader of their TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import product
from typing import Any, Literal, TypedDict, get_args

Kind = Literal["molecules", "bags", "histology"]
EXPERIMENTS: tuple[Kind, ...] = get_args(Kind)
Setting = dict[str, Any]


class RegionOptions(TypedDict):
    """The region of the ROC square, as arguments of losses and scores."""

    min_tpr: float
    max_fpr: float


@dataclass(frozen=True)
class Training:
    """How all methods of an experiment are trained.

    Attributes:
        milestones: epochs after which the learning rate is divided by 10.
        lr: learning rate, where a setting names none.
        momentum: of "sgd".
        pretrain_epochs: epochs of cross entropy that all methods start from, with Adam; 0 for none.
        side_by_side: settings trained at once in one model.
    """

    epochs: int
    milestones: tuple[int, ...]
    lr: float
    optimizer: Literal["sgd", "adam"]
    momentum: float = 0.0
    weight_decay: float = 0.0
    pretrain_epochs: int = 0
    pretrain_lr: float = 1e-3
    side_by_side: int = 1


@dataclass(frozen=True)
class Recipe:
    """How recipe rows are trained: from the best epoch of cross entropy, with averaged weights.

    Attributes:
        pretrain_epochs: epochs of cross entropy with Adam; the one with the best validation AUC is the start.
        epochs: epochs of a method's own loss, at a constant learning rate.
        average: epochs over which weights and buffers are averaged, exponentially.
        pretrain_lr: learning rate of cross entropy.
        optimizer: "sgd" or "adam", of the method's own loss.
        momentum: momentum of "sgd".
        min_gain: standard errors by which an epoch must be above the start in validation to be chosen.
    """

    pretrain_epochs: int
    epochs: int
    average: float
    pretrain_lr: float = 1e-3
    optimizer: Literal["sgd", "adam"] = "adam"
    momentum: float = 0.9
    min_gain: float = 1.0


@dataclass(frozen=True)
class DataSet:
    """A data set of an experiment.

    Attributes:
        name: key in records and on the command line.
        title: name in tables.
        source: name of the data, where several entries share them.
        positives: positives (positive bags) of a batch; likewise `negatives`.
        instances: instances of a bag in a batch; 0 where there are none.
        splits: test splits; each is run with all folds.
        by: "image" or "tile": the unit of the split.
        note: a remark below the table.
        published: for each method the published mean and standard deviation in each region.
        available: whether it can be run here; if not, its row says why.
        counts: rows and, where they are published, positives of the parts in the paper: "train", "validation" and
            "test", or "all" of them.
        width: features of the network (GIN, ResNet20); 0 for as many as in the paper.
        epochs: passes over the training data; 0 for those of the experiment. Milestones move in proportion.
    """

    name: str
    title: str
    source: str
    positives: int = 0
    negatives: int = 0
    instances: int = 0
    splits: int = 1
    by: Literal["image", "tile"] = "image"
    note: str = ""
    published: Mapping[str, tuple[tuple[float, float], ...]] | None = None
    available: bool = True
    counts: Mapping[str, tuple[int, ...]] | None = None
    width: int = 0
    epochs: int = 0


@dataclass(frozen=True)
class Candidate:
    """A method of an experiment.

    Attributes:
        name: key in records and on the command line.
        title: name in tables.
        preset: key of `METHODS["rows"]` or `METHODS["bags"]` of `moreauc.methods`.
        settings: what is tried; `lr` goes to the optimizer, `share` to the region that is trained on (a share of the
            positives and of the negatives), `sampler` to the batches, anything else to the loss.
        options: options of the loss that are not tuned; `momentum` goes to the optimizer instead of the experiment's.
        remedy: whether it departs from the paper's protocol, and is reported separately.
        recipe: whether it is trained by the recipe of the plan, and is reported separately.
    """

    name: str
    title: str
    preset: str
    settings: tuple[Setting, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    remedy: bool = False
    recipe: bool = False

    @property
    def literal(self) -> bool:
        """Whether it follows the paper's protocol."""
        return not self.remedy and not self.recipe


@dataclass(frozen=True)
class Ablation:
    """Training curves of one method that differ in one option.

    Attributes:
        settings: what is compared, one curve each.
        region: region whose TPAUC the curves show.
    """

    method: str
    datasets: tuple[str, ...]
    settings: tuple[Setting, ...]
    region: tuple[float, float]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper, read from its TOML file.

    Attributes:
        regions: (least TPR, largest FPR) of each column of the table.
        runs: runs of each method on each data set and test split: seeds of molecules, folds of bags.
        recipe: how recipe rows are trained, where there are some.
        paper_grid: values of settings that are also in the paper's grid, where ours goes beyond it; the choice among
            these alone is reported, too.
    """

    name: Kind
    title: str
    regions: tuple[tuple[float, float], ...]
    runs: int
    training: Training
    datasets: Mapping[str, DataSet]
    candidates: Mapping[str, Candidate]
    ablation: Ablation | None = None
    recipe: Recipe | None = None
    paper_grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def task(self) -> Literal["rows", "bags"]:
        """What the methods train on, a key of `METHODS`."""
        return "rows" if self.name == "molecules" else "bags"

    def in_paper(self, setting: Setting) -> bool:
        """Return whether a setting is also in the paper's grid."""
        return all(setting[key] in values for key, values in self.paper_grid.items() if key in setting)


def read_plan(name: str) -> Any:
    """Return what a TOML file of `plans` holds, its lists as tuples."""
    return parse_plan((files("experiments") / "plans" / f"{name}.toml").read_text(encoding="utf-8"))


def parse_plan(text: str) -> Any:
    """Return what the text of a TOML file holds, its lists as tuples."""
    return _fixed(tomllib.loads(text))


def _fixed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _fixed(entry) for key, entry in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


def combinations(**entries: Iterable[Any]) -> list[Setting]:
    """Return every combination of the entries' values, those of the last entry changing first.

    Example:
        >>> combinations(method=["sonx", "ce"], seed=range(2))[1]
        {'method': 'sonx', 'seed': 1}
    """
    return [dict(zip(entries, values, strict=True)) for values in product(*entries.values())]


def load_experiment(name: Kind) -> Experiment:
    """Return the plan of "molecules", "bags" or "histology".

    Example:
        >>> plan = load_experiment("molecules")
        >>> plan.regions, plan.training.epochs
        (((0.6, 0.4), (0.5, 0.5)), 60)
    """
    return make_experiment(name, read_plan(name))


def make_experiment(name: Kind, raw: Mapping[str, Any]) -> Experiment:
    """Make a plan of what its TOML file holds.

    Raises:
        ValueError: for a missing or unknown entry, or methods that try different numbers of settings (recipe rows among
            themselves).
    """
    try:
        entries = dict(raw)
        plan = Experiment(
            name,
            training=Training(**entries.pop("training")),
            datasets={key: DataSet(key, **{"source": key, **entry}) for key, entry in entries.pop("datasets").items()},
            candidates={key: Candidate(key, **_tried(entry)) for key, entry in entries.pop("methods").items()},
            ablation=Ablation(**_tried(entries.pop("ablation"))) if "ablation" in entries else None,
            recipe=Recipe(**entries.pop("recipe")) if "recipe" in entries else None,
            **entries,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"load_experiment: {name} must have the entries of an experiment, got {error}") from error
    recipes = [entry for entry in plan.candidates.values() if entry.recipe]
    others = [entry for entry in plan.candidates.values() if not entry.recipe]
    if recipes and plan.recipe is None:
        raise ValueError(f"load_experiment: {name} must have an entry recipe for {recipes[0].name}, got none")
    every, alike = ({entry.name: len(entry.settings) for entry in group} for group in (others, recipes))
    paper = {entry.name: sum(map(plan.in_paper, entry.settings)) for entry in others}
    for where, numbers in (("", every), ("", alike), (" in paper_grid", paper)):
        if len(set(numbers.values())) > 1 or 0 in numbers.values():
            raise ValueError(f"load_experiment: {name} must let all methods try as many settings{where}, got {numbers}")
    return plan


def _tried(entry: Mapping[str, Any]) -> Setting:
    """Return an entry with the settings of its grid in place of the grid."""
    others = {key: value for key, value in entry.items() if key != "grid"}
    return {**others, "settings": tuple(combinations(**entry["grid"]))}


# Synthetic data, batches that fit them, and networks that one core trains in seconds.
_SMOKE = {
    "molecules": DataSet("example", "Made molecules", "example", positives=8, negatives=16, width=8),
    "bags": DataSet("example", "Bags of digits", "digits", positives=8, negatives=24, instances=4, splits=2),
    "histology": DataSet(
        "example", "Made tissue", "example", positives=2, negatives=6, instances=2, by="tile", width=2
    ),
}


def smoke_plan(plan: Experiment) -> Experiment:
    """Return an experiment with one small data set, one epoch, two runs and two settings of each method.

    Example:
        >>> plan = smoke_plan(load_experiment("bags"))
        >>> plan.runs, plan.training.epochs, list(plan.datasets)
        (2, 1, ['example'])
    """

    def few(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
        return settings[0], settings[-1]

    dataset, training, ablation, recipe = _SMOKE[plan.name], plan.training, plan.ablation, plan.recipe
    if ablation is not None:
        ablation = replace(ablation, datasets=(dataset.name,), settings=few(ablation.settings))
    return replace(
        plan,
        title=f"{plan.title}: a trial of the program",
        runs=2,
        training=replace(training, epochs=1, milestones=(), pretrain_epochs=min(training.pretrain_epochs, 1)),
        datasets={dataset.name: dataset},
        candidates={name: replace(entry, settings=few(entry.settings)) for name, entry in plan.candidates.items()},
        ablation=ablation,
        recipe=None if recipe is None else replace(recipe, pretrain_epochs=2, epochs=1),
    )


def batch_of(dataset: DataSet) -> dict[str, int]:
    """Return the composition of a training batch."""
    return {"positives": dataset.positives, "negatives": dataset.negatives, "instances": dataset.instances}


def made_of(plan: Experiment, dataset: DataSet, candidate: Candidate) -> Setting:
    """Return data, split, network, preset and recipe of a run."""
    own = {name: getattr(dataset, name) for name in ("source", "by", "width")}
    recipe = {"recipe": asdict(plan.recipe)} if candidate.recipe and plan.recipe is not None else {}
    return {**own, "preset": candidate.preset, **recipe}


def own_epochs(dataset: DataSet, candidate: Candidate) -> int | None:
    """Return the epochs of a data set that replace the experiment's; None if they do not apply to the method."""
    return None if candidate.recipe else dataset.epochs or None


def training_on(plan: Experiment, dataset: DataSet, candidate: Candidate) -> Training:
    """Return the training of a method on a data set: the experiment's, with the changes of both."""
    training = plan.training
    if candidate.recipe and plan.recipe is not None:
        names = ("epochs", "optimizer", "momentum", "pretrain_epochs", "pretrain_lr")
        training = replace(training, milestones=(), **{name: getattr(plan.recipe, name) for name in names})
    training = replace(training, momentum=float(candidate.options.get("momentum", training.momentum)))
    epochs = own_epochs(dataset, candidate)
    if epochs is None:
        return training
    milestones = tuple(epoch * epochs // training.epochs for epoch in training.milestones)
    return replace(training, epochs=epochs, milestones=milestones)
