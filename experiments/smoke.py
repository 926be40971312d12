"""A tiny version of each experiment: the same code on data that the library makes, in seconds."""

from __future__ import annotations

from dataclasses import replace

from experiments.config import DataSet, Experiment, Setting

__all__ = ["smoke_plan"]

_RUNS = 2

# Data made on the spot, batches that they can fill, and networks that one core trains in seconds.
_DATASETS = {
    "molecules": DataSet("example", "Made molecules", "example", positives=8, negatives=16, width=8),
    "bags": DataSet("example", "Bags of digits", "digits", positives=8, negatives=24, instances=4, splits=2),
    "histology": DataSet(
        "example", "Made tissue", "example", positives=2, negatives=6, instances=2, by="tile", width=2
    ),
}


def smoke_plan(plan: Experiment) -> Experiment:
    """Return an experiment with one small data set, one epoch, two runs and two settings of each method.

    Methods, options, regions and training curves are as they were.

    Example:
        >>> from experiments.config import load_experiment
        >>> plan = smoke_plan(load_experiment("bags"))
        >>> plan.runs, plan.training.epochs, list(plan.datasets)
        (2, 1, ['example'])
    """
    dataset = _DATASETS[plan.name]
    training = plan.training
    contestants = {
        name: replace(entry, settings=_first_and_last(entry.settings)) for name, entry in plan.contestants.items()
    }
    ablation = plan.ablation
    if ablation is not None:
        ablation = replace(ablation, datasets=(dataset.name,), settings=_first_and_last(ablation.settings))
    return replace(
        plan,
        title=f"{plan.title}: a trial of the program",
        runs=_RUNS,
        training=replace(training, epochs=1, milestones=(), pretrain_epochs=min(training.pretrain_epochs, 1)),
        datasets={dataset.name: dataset},
        contestants=contestants,
        ablation=ablation,
    )


def _first_and_last(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    return (settings[0], settings[-1])
