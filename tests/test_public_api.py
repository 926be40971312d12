"""The public names: at most 134, each with one home, in docs/api.md, documented, typed, and as DESIGN has them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moreauc

HOMES = [
    *("moreauc", "moreauc.boosting", "moreauc.checkpoint", "moreauc.comparison", "moreauc.contrib"),
    *("moreauc.contrib.cuda_graphs", "moreauc.contrib.lightning", "moreauc.criteria", "moreauc.data"),
    *("moreauc.distributed", "moreauc.estimators"),
    *("moreauc.methods", "moreauc.metrics", "moreauc.models", "moreauc.molecules", "moreauc.optim", "moreauc.problems"),
    *("moreauc.samplers", "moreauc.solver", "moreauc.theory", "moreauc.train"),
]
OTHERS = sorted(
    info.name for info in pkgutil.walk_packages(moreauc.__path__, "moreauc.") if info.name.split(".")[-1] != "__main__"
)


def public(home):
    module = importlib.import_module(home)
    return {name: getattr(module, name) for name in module.__all__}


def test_the_api_page_lists_the_public_names_and_no_others():
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    listed, home = set(), ""
    for line in page.splitlines():
        for module, name in re.findall(r"`((?:moreauc)?(?:\.\w+)*)\.(\w+)`", line.split("|")[1] if "|" in line else ""):
            home = module or home
            listed.add((home, name))
    top = set(moreauc.__all__)
    wanted = {(home, name) for home in HOMES for name in public(home) if home == "moreauc" or name not in top}
    wanted.discard(("moreauc.contrib.lightning", "ResumableLoader"))  # whose home is moreauc.contrib
    assert listed == wanted
    assert len(wanted) <= 134


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in HOMES])
def test_no_other_module_advertises_names(name):
    path = Path(moreauc.__file__).parent.joinpath(*name.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = source.read_text(encoding="utf-8")
    assert "\n__all__" not in text and text.startswith(('"""', 'r"""'))


@pytest.mark.parametrize("home", HOMES)
def test_public_names_are_documented_and_annotated(home):
    assert importlib.import_module(home).__doc__
    for key, value in public(home).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{home}.{key} has no docstring"
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            missing = [p.name for p in signature.parameters.values() if p.annotation is inspect.Parameter.empty]
            typed = signature.return_annotation is not inspect.Signature.empty
            assert not missing and typed, f"{home}.{key}: {missing}"


def test_signatures_of_the_contract():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(moreauc.FCCOLoss) == [
        *("num_blocks", "outer", "dim", "tau", "gamma", "bound", "initial", "rows", "smoothing", "prox")
    ]
    assert names(moreauc.FCCOLoss.forward)[1:] == ["inner", "index", "previous_inner"]
    assert names(moreauc.TCCOLoss) == [
        *("num_outer", "num_inner", "outer", "middle", "dim_middle", "dim_inner", "tau1", "tau2", "gamma1", "gamma2"),
        *("bound", "initial_u", "initial_v", "smoothing", "prox"),
    ]
    assert names(moreauc.TCCOLoss.forward)[1:] == ["h", "outer_index", "inner_index", "previous_h"]
    assert names(moreauc.PreviousIterate) == ["model", "optimizer"]
    assert names(moreauc.theory.moreau_envelope)[1:3] == ["w", "rho_bar"]


def test_importing_the_package_is_light():
    """Plots and the command line come only when asked for."""
    code = "import sys, moreauc; print([m for m in ('rich', 'sklearn') if m in sys.modules]); import moreauc.metrics; "
    code += "print([m for m in ('matplotlib', 'typer') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["[]", "[]"]
