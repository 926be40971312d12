"""The public names: documented, typed, and what DESIGN promises."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import moreauc

MODULES = [
    info.name
    for info in pkgutil.walk_packages(moreauc.__path__, "moreauc.")
    if not info.name.split(".")[-1].startswith("_")
]


def public(module):
    for name in getattr(module, "__all__", []):
        yield name, getattr(module, name)


@pytest.mark.parametrize("name", ["moreauc", *MODULES])
def test_public_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for key, value in public(module):
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{key} has no docstring"


@pytest.mark.parametrize("name", ["moreauc", *MODULES])
def test_public_functions_are_annotated(name):
    for key, value in public(importlib.import_module(name)):
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            missing = [p.name for p in signature.parameters.values() if p.annotation is inspect.Parameter.empty]
            assert not missing and signature.return_annotation is not inspect.Signature.empty, (
                f"{name}.{key}: {missing}"
            )


def test_signatures_of_the_contract():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(moreauc.FCCOLoss) == ["num_blocks", "outer", "dim", "tau", "gamma", "bound", "initial"]
    assert names(moreauc.FCCOLoss.forward)[1:] == ["inner", "index", "previous_inner"]
    assert names(moreauc.TCCOLoss) == [
        *("num_outer", "num_inner", "outer", "middle", "dim_middle", "dim_inner", "tau1", "tau2", "gamma1", "gamma2"),
        *("bound", "initial_u", "initial_v"),
    ]
    assert names(moreauc.TCCOLoss.forward)[1:] == ["h", "outer_index", "inner_index", "previous_h"]
    assert names(moreauc.PreviousIterate) == ["model", "optimizer"]
    assert names(moreauc.theory.moreau_envelope)[1:3] == ["w", "rho_bar"]


def test_importing_the_package_is_light():
    """Plots and command line come only when asked for."""
    import subprocess
    import sys

    code = "import sys, moreauc; print([m for m in ('matplotlib', 'typer', 'rich') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
