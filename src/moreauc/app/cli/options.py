"""The options of the commands: names, types and defaults, one class for each command, and their help texts.

Names of losses, models and baselines are those of the registry. Other names that options take are listed here once
more, so that help and completion need not import what they name; a test compares them.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import typer

from moreauc._registry import METHODS, MODELS, OTHER_MODELS, method_names

ROW_LOSSES, BAG_LOSSES, GROUP_LOSSES = METHODS.values()
MODEL_NAMES = ("mlp", *OTHER_MODELS)
SURROGATES = ("squared_hinge", "hinge", "squared", "logistic", "sigmoid", "smooth_ramp")
SPLITS = ("scaffold", "random")
INVALID = ("error", "skip")
TASKS = ("auto", "classification", "regression")
EXAMPLES = ("digits", "breast_cancer", "diabetes", "fraud", "fraud_test")
REGION = (0.0, 0.1)  # default of --min-tpr and --max-fpr: a tenth of the negatives may be called by mistake

Completion = Callable[[str], list[str]]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Train a model on a table, and test it on held-out rows.

    By default a classifier of rows is trained for the two-way partial AUC. With --bags the rows are instances, and each
    bag has a class: the data are split by bags, and the report shows the weights of instances. With --groups the loss
    of the worst groups is minimised, for classification or regression, and the report shows the loss of every group.

    Writes report.html, report.json, model.joblib and log.txt into the folder OUT. The report compares the model with
    baselines trained on the same rows: logistic regression, or the mean loss of all rows (ERM) with --groups.

    With --checkpoint the training is saved while it runs and when it is stopped by Ctrl-C or SIGTERM. The same command
    with --resume continues it and gives the same result.
    """

    data: Path
    target: str
    out: Path | None = None
    positive: str | None = None
    min_tpr: float | None = None
    max_fpr: float | None = None
    fpr_budget: float | None = None
    test_size: float | None = None
    test: Path | None = None
    loss: str | None = None
    model: str | None = None
    surrogate: str | None = None
    baselines: str | None = None
    smiles: str | None = None
    split: str | None = None
    invalid: str | None = None
    jobs: int | None = None
    bags: str | None = None
    instances_per_bag: int | None = None
    groups: str | None = None
    top_k: float | None = None
    task: str | None = None
    keep_groups: bool = False
    drop_groups: bool = False
    groups_per_batch: int | None = None
    samples_per_group: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    patience: int | None = None
    dropout: float | None = None
    device: str | None = None
    seed: int = 0
    id: str | None = None
    drop: list[str] | None = None
    force: bool = False
    checkpoint: str | None = None  # not a Path, which would turn an empty text into "."
    resume: bool = False
    save_every: int | None = None

    @property
    def region(self) -> tuple[float, float]:
        """Least true and largest false positive rate of the region."""
        low, high = REGION
        return low if self.min_tpr is None else self.min_tpr, high if self.max_fpr is None else self.max_fpr


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Score a labelled table with a saved model.

    Prints TPAUC with its bootstrap interval, AUC, and the rates at the model's threshold; for a model of groups, the
    loss of every group. With --out also writes report.html, report.json and log.txt. The model file is a pickle: use
    only files from people you trust.
    """

    run: Path
    data: Path
    out: Path | None = None
    smiles: str | None = None
    invalid: str | None = None
    jobs: int | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Score the rows of a table, or its bags, with a saved model.

    Writes one line for each row: row (from 1), score (above 0 where the decision is positive), probability (of the
    positive class) and decision (the class). A model of bags writes one line for each bag. A model of groups writes
    row, decision and the probability of each class, or row and prediction. The column of --id comes after the number
    of the row. The table needs neither target nor groups. Without --out the lines go to standard output, as CSV.
    The model file is a pickle: use only files from people you trust.
    """

    run: Path
    data: Path
    out: Path | None = None
    keep_columns: bool = False
    instances: Path | None = None
    top: int | None = None
    smiles: str | None = None
    invalid: str | None = None
    jobs: int | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare SONX with the baselines and boosted trees on a table, by cross-validation.

    Every method gets the same number of settings to try. Writes report.html, report.json and log.txt into the folder
    OUT. LightGBM and XGBoost take part where they are installed (extra "boosting").
    """

    data: Path | None = None
    target: str | None = None
    example: str | None = None
    out: Path | None = None
    positive: str | None = None
    min_tpr: float = REGION[0]
    max_fpr: float = REGION[1]
    methods: str | None = None
    folds: int = 5
    inner_folds: int = 3
    seeds: int = 1
    trials: int = 8
    jobs: int = 2
    id: str | None = None
    drop: list[str] | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """Write a table to try the other commands on.

    The column to predict is named target, with the classes 1 (positive) and 0.
    """

    name: str
    out: Path | None = None
    force: bool = False


COMMANDS: dict[str, type] = {
    "fit": FitOptions,
    "evaluate": EvaluateOptions,
    "predict": PredictOptions,
    "compare": CompareOptions,
    "example": ExampleOptions,
}


def signature(command: str) -> inspect.Signature:
    """Return the arguments of a command as typer takes them, with help, group, range and completion."""
    fields = inspect.signature(COMMANDS[command]).parameters.values()
    return inspect.Signature([field.replace(default=_described(command, field)) for field in fields])


def _described(command: str, field: inspect.Parameter) -> object:
    name, default = field.name, ... if field.default is field.empty else field.default
    completion = _COMPLETIONS.get(name)
    if name in _ARGUMENTS:
        text = _ARGUMENTS[name]
        return typer.Argument(default, metavar=name.upper(), help=text, show_default=False, autocompletion=completion)
    text, panel = _TEXTS.get(f"{command} {name}") or _TEXTS[name]
    return typer.Option(
        default,
        f"--{name.replace('_', '-')}",
        help=text,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=completion,
        min=_LEAST.get(name),
        max=2**32 - 1 if name == "seed" else None,
        metavar="N" if name in _LEAST else "PATH" if name == "checkpoint" else None,  # a range would take much room
    )


def _listed(names: Iterable[str], default: str = "") -> str:
    *first, last = (f"{name} (default)" if name == default else name for name in names)
    return f"{', '.join(first)} or {last}"


def _used(*names: str) -> str:
    """Return kinds of model with what they are for."""
    *first, last = (f"{name} {MODELS[name].use}" for name in names)
    return f"{', '.join(first)}, or {last}"


_ARGUMENTS = {
    "data": "Table: .csv, .tsv, .parquet or .pq.",
    "run": "Folder that `moreauc fit` wrote.",
    "name": "Table to write: digits, breast_cancer, diabetes, fraud, or fraud_test for a test table to fraud.",
}
_OWN = "by default that of the estimator"
# By group in --help; "command option" where the commands differ.
_PANELS = {
    "Table": {
        "target": "Column to predict: two classes; with --groups, any classes or numbers.",
        "compare target": "Column of DATA with the two classes.",
        "example": f"A table to try instead of DATA: {_listed(EXAMPLES)}.",
        "positive": "Value of the positive class; inferred by default.",
        "id": "Column of row names: not a feature, and written beside the predictions.",
        "drop": "Columns to leave out, separated by commas; may be repeated.",
        "test_size": "Share of the rows or bags to test on; 0.25 by default.",
        "test": "Table to test on, instead of a share of DATA.",
    },
    "Region": {
        "min_tpr": "Lower edge of the true positive rate in the region to train for, in [0, 1); "
        f"{REGION[0]:g} by default.",
        "max_fpr": "Upper edge of the false positive rate in the region to train for, in (0, 1]; "
        f"{REGION[1]:g} by default.",
        "fpr_budget": "Largest false positive rate of the decisions, in [0, 1]; --max-fpr by default.",
    },
    "Model": {
        "model": f"Kind of model: mlp (default), {_used(*OTHER_MODELS)}; with --groups mlp or linear; not with --bags.",
        "loss": f"Loss to train with: {_listed(ROW_LOSSES, 'sonx')}; with --bags {_listed(BAG_LOSSES, 'sont_att')}; "
        f"with --groups {_listed(GROUP_LOSSES, 'sonx')}.",
        "surrogate": f"Loss of a pair, for losses over pairs: {_listed(SURROGATES)}; by default that of the loss.",
        "baselines": "Methods to compare with, separated by commas: losses as for --loss, lr (logistic regression; "
        "default), linear, trees or auto (see --model), forest, lightgbm or xgboost; with --bags lr_bags (default) or "
        "forest_bags; with --groups erm (default); or none.",
    },
    "Training": {
        "epochs": f"Passes over the training data; {_OWN}.",
        "batch_size": f"Rows or bags in a batch; {_OWN}; not with --groups.",
        "lr": f"Learning rate; {_OWN}.",
        "patience": f"Stop after this many epochs without a better score; {_OWN}.",
        "dropout": f"Share of hidden units dropped in training, in [0, 1); {_OWN}; only for --model mlp.",
        "device": "Device to train on, cpu (default), cuda or mps.",
        "seed": "Seed of all random draws; 0 by default.",
    },
    "Molecules": {
        "fit smiles": "Column with molecules as SMILES: a model of their fingerprints, and of nothing else.",
        "smiles": "Column with SMILES; by default that of the training.",
        "split": "How test rows are drawn: scaffold (default) for molecules with other ring systems, or random; only "
        "with --smiles.",
        "invalid": "error (default) to refuse invalid SMILES and rows of salts only, skip to leave them out; only with "
        "--smiles.",
        "jobs": "Processes that read molecules; 1 by default; only with --smiles.",
    },
    "Bags": {
        "bags": "Column that names the bag of each row: a model of bags.",
        "instances_per_bag": f"Instances of each bag in a batch; {_OWN}; only with --bags.",
    },
    "Groups": {
        "groups": "Columns that name the group of each row, separated by commas: a model for the worst groups.",
        "top_k": "Number of worst groups to train for, or a share in (0, 1); 1 by default; only with --groups.",
        "task": "What to predict: auto (default) by the target, classification or regression; only with --groups.",
        "keep_groups": "Also use the columns of --groups as features; only with --groups.",
        "drop_groups": "Do not use the columns of --groups as features; this is the default.",
        "groups_per_batch": f"Groups in a batch; {_OWN}; only with --groups.",
        "samples_per_group": f"Rows of each group in a batch; {_OWN}; only with --groups.",
    },
    "Comparison": {
        "methods": f"Methods to compare, separated by commas, of {_listed(method_names('rows'))}; all but auto by "
        "default.",
        "folds": "Folds of the cross-validation; 5 by default.",
        "inner_folds": "Folds of the training rows to choose settings by; 3 by default.",
        "seeds": "Repetitions with different folds; 1 by default.",
        "trials": "Settings tried for each method and fold; 8 by default.",
        "compare jobs": "Number of processes; 2 by default.",
    },
    "Results": {
        "out": "Folder for the results, new or empty; reports/NAME by default, with a number where that is taken.",
        "evaluate out": "Folder for a report; none by default.",
        "predict out": "File for the scores, .csv, .tsv, .parquet or .pq; standard output by default.",
        "example out": "File for the table, .csv, .tsv, .parquet or .pq; NAME.csv by default.",
        "keep_columns": "Write the columns of DATA before the scores; not for a model of bags.",
        "instances": "File for bag, row, score and weight of every instance; only for a model of bags.",
        "top": "Write the best N rows only, the best first.",
        "force": "Replace the results of an earlier run.",
        "predict force": "Replace the files where they exist.",
        "example force": "Replace the file where it exists.",
        "checkpoint": "Folder to save the training in while it runs; needed for --resume.",
        "resume": "Continue the training in --checkpoint; start a new one if there is none.",
        "save_every": "Steps between two saves; by default only the end of each epoch is saved; needs --checkpoint.",
    },
}
_TEXTS = {name: (text, panel) for panel, texts in _PANELS.items() for name, text in texts.items()}
_LEAST = {
    **dict.fromkeys(("instances_per_bag", "groups_per_batch", "samples_per_group", "epochs", "patience"), 1),
    **dict.fromkeys(("save_every", "top", "jobs", "seeds", "trials"), 1),
    **{"batch_size": 2, "folds": 2, "inner_folds": 2, "seed": 0},
}


# Completion


def _one_of(names: Iterable[str]) -> Completion:
    """Return the completion of an option that takes one of these names."""
    known = tuple(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def _some_of(names: Iterable[str]) -> Completion:
    """Return the completion of an option that takes names separated by commas: that of the last one."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def _by_task(rows: Completion, bags: Completion, groups: Completion) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion that depends on the task, as far as the options before show it."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found = bags if ctx.params.get("bags") else groups if ctx.params.get("groups") else rows
        return found(incomplete)

    return complete


_BASELINES = (("none", *names) for names in (method_names("rows"), method_names("bags"), GROUP_LOSSES))
_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "loss": _by_task(*map(_one_of, (ROW_LOSSES, BAG_LOSSES, GROUP_LOSSES))),
    "model": _one_of(MODEL_NAMES),
    "surrogate": _one_of(SURROGATES),
    "baselines": _by_task(*map(_some_of, _BASELINES)),
    "split": _one_of(SPLITS),
    "invalid": _one_of(INVALID),
    "task": _one_of(TASKS),
    "device": _one_of(("cpu", "cuda", "mps")),
    "methods": _some_of(method_names("rows")),
    "example": _one_of(EXAMPLES),
    "name": _one_of(EXAMPLES),
}
