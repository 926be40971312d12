"""Which options of `moreauc fit` go together."""

from __future__ import annotations

from typing import Any

import typer


def check_options(
    context: typer.Context,
    *,
    bags: str | None,
    groups: str | None,
    method: str | None,
    only: dict[str, dict[str, Any]],
) -> None:
    """Refuse --bags beside --groups, options of one of them without it, and options that do not go with it.

    Args:
        context: that of the command, which knows what was typed.
        bags: the option.
        groups: the option.
        method: the option.
        only: values of the options that need "bags" or "groups", None where not given.
    """
    if bags is not None and groups is not None:
        raise ValueError(f"moreauc fit: --bags and --groups exclude each other, got {bags!r} and {groups!r}")
    if only["groups"]["keep_groups"] and only["groups"]["drop_groups"]:
        raise ValueError("moreauc fit: --keep-groups and --drop-groups exclude each other, got both")
    for name, given in {"bags": bags, "groups": groups}.items():
        if given is None:
            _refuse(only[name], f"needs --{name}")
    if bags is None and groups is None:
        _refuse({"method": method}, f"needs {_owners(method)}")
    hint = "; choose by --method"
    if bags is not None:
        _refuse(_typed(context, "loss", "model"), f"does not go with --bags{hint}")
    if groups is not None:
        _refuse(_typed(context, "loss"), f"does not go with --groups{hint}")
        _refuse(
            _typed(context, "batch_size"), "does not go with --groups; use --groups-per-batch and --samples-per-group"
        )
        _refuse(_typed(context, "positive", "min_tpr", "max_fpr"), "is for TPAUC and does not go with --groups")


def _typed(context: typer.Context, *names: str) -> dict[str, Any]:
    """Return the options that were typed, whatever their defaults are."""
    return {
        name: context.params[name]
        for name in names
        if getattr(context.get_parameter_source(name), "name", "DEFAULT") != "DEFAULT"
    }


def _owners(method: str | None) -> str:
    """Return which option a method belongs to."""
    from moreauc.methods import METHODS

    found = [
        name for name, methods in (("--bags", METHODS["bags"]), ("--groups", METHODS["groups"])) if method in methods
    ]
    return found[0] if found else "--bags or --groups"


def _refuse(values: dict[str, Any], why: str) -> None:
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"moreauc fit: --{name.replace('_', '-')} {why}, got {value!r}")
