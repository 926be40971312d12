"""The options of the commands: names, types, defaults and help texts, one class for each command.

Names of losses, models and baselines are those of the registry. Other names that options take are listed here once
more, so that help and completion need not import what they name; a test compares them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from moreauc._registry import METHODS, MODELS, OTHER_MODELS, method_names

ROW_LOSSES, BAG_LOSSES, GROUP_LOSSES = METHODS.values()
MODEL_NAMES = ("mlp", *OTHER_MODELS)
SURROGATES = ("squared_hinge", "hinge", "squared", "logistic", "sigmoid", "smooth_ramp")
SPLITS = ("scaffold", "random")
INVALID = ("error", "skip")
TASKS = ("auto", "classification", "regression")
EXAMPLES = ("digits", "breast_cancer", "diabetes", "fraud", "fraud_test")


def _argument(name: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=name, help=text, show_default=False, **more)


def _option(text: str, *names: str, **more: Any) -> Any:
    if "min" in more:
        more = {"metavar": "N", **more}  # or the range would take the room of the help texts
    return typer.Option(*names, help=text, show_default=False, **more)


def _listed(names: Iterable[str], default: str = "") -> str:
    *first, last = (f"{name} (default)" if name == default else name for name in names)
    return f"{', '.join(first)} or {last}"


def _used(*names: str) -> str:
    """Return kinds of model with what they are for."""
    *first, last = (f"{name} {MODELS[name].use}" for name in names)
    return f"{', '.join(first)}, or {last}"


def _one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the completion of an option that takes one of these names."""
    known = tuple(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def _some_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the completion of an option that takes names separated by commas: that of the last one."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def _by_task(rows: Any, bags: Any, groups: Any) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion that depends on the task, as far as the options before show it."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = (bags if ctx.params.get("bags") else groups if ctx.params.get("groups") else rows)(
            incomplete
        )
        return found

    return complete


REGION = (0.0, 0.1)  # default of --min-tpr and --max-fpr: a tenth of the negatives may be called by mistake

_Table = _argument("DATA", "Table: .csv, .tsv, .parquet or .pq.")
_Run = _argument("RUN", "Folder that `moreauc fit` wrote.")
_Out = _option("Folder for the results, new or empty; reports/NAME by default, with a number where that is taken.")
_Force = _option("Replace the results of an earlier run.", "--force")
_Positive = _option("Value of the positive class; inferred by default.")
_MinTPR = _option(
    f"Lower edge of the true positive rate in the region to train for, in [0, 1); {REGION[0]:g} by default.",
    "--min-tpr",
)
_MaxFPR = _option(
    f"Upper edge of the false positive rate in the region to train for, in (0, 1]; {REGION[1]:g} by default.",
    "--max-fpr",
)
_Smiles = _option("Column with SMILES; by default that of the training.")
_Invalid = _option(
    "error (default) to refuse invalid SMILES and rows of salts only, skip to leave them out; only with --smiles.",
    autocompletion=_one_of(INVALID),
)
_Jobs = _option("Processes that read molecules; 1 by default; only with --smiles.", min=1)
_Id = _option("Column of row names: not a feature, and written beside the predictions.", "--id")
_Drop = _option("Columns to leave out, separated by commas; may be repeated.")


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

    data: Annotated[Path, _Table]
    target: Annotated[str, _option("Column to predict: two classes; with --groups, any classes or numbers.")]
    out: Annotated[Path | None, _Out] = None
    positive: Annotated[str | None, _Positive] = None
    min_tpr: Annotated[float | None, _MinTPR] = None
    max_fpr: Annotated[float | None, _MaxFPR] = None
    fpr_budget: Annotated[
        float | None, _option("Largest false positive rate of the decisions, in [0, 1]; --max-fpr by default.")
    ] = None
    test_size: Annotated[float | None, _option("Share of the rows or bags to test on; 0.25 by default.")] = None
    test: Annotated[Path | None, _option("Table to test on, instead of a share of DATA.")] = None
    loss: Annotated[
        str | None,
        _option(
            f"Loss to train with: {_listed(ROW_LOSSES, 'sonx')}; with --bags {_listed(BAG_LOSSES, 'sont_att')}; with "
            f"--groups {_listed(GROUP_LOSSES, 'sonx')}.",
            autocompletion=_by_task(*map(_one_of, (ROW_LOSSES, BAG_LOSSES, GROUP_LOSSES))),
        ),
    ] = None
    model: Annotated[
        str | None,
        _option(
            f"Kind of model: mlp (default), {_used(*OTHER_MODELS)}; with --groups mlp or linear; not with --bags.",
            autocompletion=_one_of(MODEL_NAMES),
        ),
    ] = None
    surrogate: Annotated[
        str | None,
        _option(
            f"Loss of a pair, for losses over pairs: {_listed(SURROGATES)}; by default that of the loss.",
            autocompletion=_one_of(SURROGATES),
        ),
    ] = None
    baselines: Annotated[
        str | None,
        _option(
            "Methods to compare with, separated by commas: losses as for --loss, lr (logistic regression; default), "
            "linear, trees or auto (see --model), forest, lightgbm or xgboost; with --bags lr_bags (default) or "
            "forest_bags; with --groups erm (default); or none.",
            autocompletion=_by_task(
                _some_of(("none", *method_names("rows"))),
                _some_of(("none", *method_names("bags"))),
                _some_of(("none", *GROUP_LOSSES)),
            ),
        ),
    ] = None
    smiles: Annotated[
        str | None, _option("Column with molecules as SMILES: a model of their fingerprints, and of nothing else.")
    ] = None
    split: Annotated[
        str | None,
        _option(
            "How test rows are drawn: scaffold (default) for molecules with other ring systems, or random; only with "
            "--smiles.",
            autocompletion=_one_of(SPLITS),
        ),
    ] = None
    invalid: Annotated[str | None, _Invalid] = None
    jobs: Annotated[int | None, _Jobs] = None
    bags: Annotated[str | None, _option("Column that names the bag of each row: a model of bags.")] = None
    instances_per_bag: Annotated[
        int | None,
        _option("Instances of each bag in a batch; by default that of the estimator; only with --bags.", min=1),
    ] = None
    groups: Annotated[
        str | None,
        _option("Columns that name the group of each row, separated by commas: a model for the worst groups."),
    ] = None
    top_k: Annotated[
        float | None,
        _option("Number of worst groups to train for, or a share in (0, 1); 1 by default; only with --groups."),
    ] = None
    task: Annotated[
        str | None,
        _option(
            "What to predict: auto (default) by the target, classification or regression; only with --groups.",
            autocompletion=_one_of(TASKS),
        ),
    ] = None
    keep_groups: Annotated[
        bool, _option("Also use the columns of --groups as features; only with --groups.", "--keep-groups")
    ] = False
    drop_groups: Annotated[
        bool, _option("Do not use the columns of --groups as features; this is the default.", "--drop-groups")
    ] = False
    groups_per_batch: Annotated[
        int | None, _option("Groups in a batch; by default that of the estimator; only with --groups.", min=1)
    ] = None
    samples_per_group: Annotated[
        int | None,
        _option("Rows of each group in a batch; by default that of the estimator; only with --groups.", min=1),
    ] = None
    epochs: Annotated[
        int | None, _option("Passes over the training data; by default that of the estimator.", min=1)
    ] = None
    batch_size: Annotated[
        int | None, _option("Rows or bags in a batch; by default that of the estimator; not with --groups.", min=2)
    ] = None
    lr: Annotated[float | None, _option("Learning rate; by default that of the estimator.")] = None
    patience: Annotated[
        int | None,
        _option("Stop after this many epochs without a better score; by default that of the estimator.", min=1),
    ] = None
    dropout: Annotated[
        float | None,
        _option(
            "Share of hidden units dropped in training, in [0, 1); by default that of the estimator; only for "
            "--model mlp."
        ),
    ] = None
    device: Annotated[
        str | None,
        _option("Device to train on, cpu (default), cuda or mps.", autocompletion=_one_of(("cpu", "cuda", "mps"))),
    ] = None
    seed: Annotated[int, _option("Seed of all random draws; 0 by default.", min=0, max=2**32 - 1)] = 0
    id: Annotated[str | None, _Id] = None
    drop: Annotated[list[str] | None, _Drop] = None
    force: Annotated[bool, _Force] = False
    checkpoint: Annotated[  # not a Path, which would turn an empty text into "."
        str | None, _option("Folder to save the training in while it runs; needed for --resume.", metavar="PATH")
    ] = None
    resume: Annotated[
        bool, _option("Continue the training in --checkpoint; start a new one if there is none.", "--resume")
    ] = False
    save_every: Annotated[
        int | None,
        _option("Steps between two saves; by default only the end of each epoch is saved; needs --checkpoint.", min=1),
    ] = None

    @property
    def region(self) -> tuple[float, float]:
        """Least true and largest false positive rate of the region."""
        low, high = REGION
        return low if self.min_tpr is None else self.min_tpr, high if self.max_fpr is None else self.max_fpr


def _group(options: type, panels: dict[str, tuple[str, ...]]) -> None:
    """Group the options in --help; those that commands share are in the same group in all of them."""
    for panel, names in panels.items():
        for name in names:
            options.__annotations__[name].__metadata__[0].rich_help_panel = panel


_FIT_PANELS = {
    "Table": ("target", "positive", "id", "drop", "test_size", "test"),
    "Region": ("min_tpr", "max_fpr", "fpr_budget"),
    "Model": ("model", "loss", "surrogate", "baselines"),
    "Training": ("epochs", "batch_size", "lr", "patience", "dropout", "device", "seed"),
    "Molecules": ("smiles", "split", "invalid", "jobs"),
    "Bags": ("bags", "instances_per_bag"),
    "Groups": ("groups", "top_k", "task", "keep_groups", "drop_groups", "groups_per_batch", "samples_per_group"),
    "Results": ("out", "force", "checkpoint", "resume", "save_every"),
}
_group(FitOptions, _FIT_PANELS)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Score a labelled table with a saved model.

    Prints TPAUC with its bootstrap interval, AUC, and the rates at the model's threshold; for a model of groups, the
    loss of every group. With --out also writes report.html, report.json and log.txt. The model file is a pickle: use
    only files from people you trust.
    """

    run: Annotated[Path, _Run]
    data: Annotated[Path, _Table]
    out: Annotated[Path | None, _option("Folder for a report; none by default.")] = None
    smiles: Annotated[str | None, _Smiles] = None
    invalid: Annotated[str | None, _Invalid] = None
    jobs: Annotated[int | None, _Jobs] = None
    force: Annotated[bool, _Force] = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Score the rows of a table, or its bags, with a saved model.

    Writes one line for each row: row (from 1), score (above 0 where the decision is positive), probability (of the
    positive class) and decision (the class). A model of bags writes one line for each bag. A model of groups writes
    row, decision and the probability of each class, or row and prediction. The column of --id comes after the number
    of the row. The table needs neither target nor groups. Without --out the lines go to standard output, as CSV.
    The model file is a pickle: use only files from people you trust.
    """

    run: Annotated[Path, _Run]
    data: Annotated[Path, _Table]
    out: Annotated[
        Path | None, _option("File for the scores, .csv, .tsv, .parquet or .pq; standard output by default.")
    ] = None
    keep_columns: Annotated[
        bool, _option("Write the columns of DATA before the scores; not for a model of bags.", "--keep-columns")
    ] = False
    instances: Annotated[
        Path | None, _option("File for bag, row, score and weight of every instance; only for a model of bags.")
    ] = None
    top: Annotated[int | None, _option("Write the best N rows only, the best first.", min=1)] = None
    smiles: Annotated[str | None, _Smiles] = None
    invalid: Annotated[str | None, _Invalid] = None
    jobs: Annotated[int | None, _Jobs] = None
    force: Annotated[bool, _option("Replace the files where they exist.", "--force")] = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare SONX with the baselines and boosted trees on a table, by cross-validation.

    Every method gets the same number of settings to try. Writes report.html, report.json and log.txt into the folder
    OUT. LightGBM and XGBoost take part where they are installed (extra "boosting").
    """

    data: Annotated[Path | None, _Table] = None
    target: Annotated[str | None, _option("Column of DATA with the two classes.")] = None
    example: Annotated[
        str | None, _option(f"A table to try instead of DATA: {_listed(EXAMPLES)}.", autocompletion=_one_of(EXAMPLES))
    ] = None
    out: Annotated[Path | None, _Out] = None
    positive: Annotated[str | None, _Positive] = None
    min_tpr: Annotated[float, _MinTPR] = REGION[0]
    max_fpr: Annotated[float, _MaxFPR] = REGION[1]
    methods: Annotated[
        str | None,
        _option(
            f"Methods to compare, separated by commas, of {_listed(method_names('rows'))}; all but auto by default.",
            autocompletion=_some_of(method_names("rows")),
        ),
    ] = None
    folds: Annotated[int, _option("Folds of the cross-validation; 5 by default.", min=2)] = 5
    inner_folds: Annotated[int, _option("Folds of the training rows to choose settings by; 3 by default.", min=2)] = 3
    seeds: Annotated[int, _option("Repetitions with different folds; 1 by default.", min=1)] = 1
    trials: Annotated[int, _option("Settings tried for each method and fold; 8 by default.", min=1)] = 8
    jobs: Annotated[int, _option("Number of processes; 2 by default.", min=1)] = 2
    id: Annotated[str | None, _Id] = None
    drop: Annotated[list[str] | None, _Drop] = None
    force: Annotated[bool, _Force] = False


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """Write a table to try the other commands on.

    The column to predict is named target, with the classes 1 (positive) and 0.
    """

    name: Annotated[
        str,
        _argument(
            "NAME",
            "Table to write: digits, breast_cancer, diabetes, fraud, or fraud_test for a test table to fraud.",
            autocompletion=_one_of(EXAMPLES),
        ),
    ]
    out: Annotated[Path | None, _option("File for the table, .csv, .tsv, .parquet or .pq; NAME.csv by default.")] = None
    force: Annotated[bool, _option("Replace the file where it exists.", "--force")] = False


_group(EvaluateOptions, {"Molecules": ("smiles",), "Results": ("out",)})
_group(PredictOptions, {"Molecules": ("smiles",), "Results": ("out", "keep_columns", "instances", "top", "force")})
_group(
    CompareOptions,
    {"Table": ("target", "example"), "Comparison": ("methods", "folds", "inner_folds", "seeds", "trials", "jobs")},
)
_group(ExampleOptions, {"Results": ("out", "force")})
