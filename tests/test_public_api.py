"""The public names: at most 110, each with one home, in the reference, documented, typed, as DESIGN has them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import moreauc

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
sys.path.insert(0, str(REFERENCE.parent))
from api_check import Found, check_api, undocumented  # noqa: E402

HOMES = [
    *("moreauc", "moreauc.boosting", "moreauc.checkpoint", "moreauc.contrib"),
    *("moreauc.contrib.cuda_graphs", "moreauc.contrib.lightning", "moreauc.criteria", "moreauc.data"),
    *("moreauc.distributed", "moreauc.estimators"),
    *("moreauc.methods", "moreauc.metrics", "moreauc.models", "moreauc.optim"),
    *("moreauc.app.comparison", "moreauc.app.molecules"),
    *("moreauc.samplers", "moreauc.solver", "moreauc.theory", "moreauc.train"),
]
OTHERS = sorted(
    info.name for info in pkgutil.walk_packages(moreauc.__path__, "moreauc.") if info.name.split(".")[-1] != "__main__"
)


def public(home):
    module = importlib.import_module(home)
    return {name: getattr(module, name) for name in module.__all__}


def test_the_reference_lists_the_public_names_and_no_others_and_documents_all():
    found = check_api("\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md")))
    assert found.problems == []
    assert 90 <= found.documented <= 110 and found.arguments > 500


def test_what_is_not_documented_is_found():
    class Thing:
        """Something.

        Args:
            known: its first argument.
        """

        def __init__(self, known, unknown):
            self.known, self.unknown = known, unknown

        def silent(self):
            return self.known

    found = Found()
    assert list(undocumented("Thing", Thing, found)) == [
        "Thing: the argument unknown is not documented",
        "Thing.silent has no docstring",
    ]
    assert list(undocumented("lambda", lambda: 0, found)) == ["lambda has no docstring"]
    problems = check_api("   moreauc.TPAUCLoss\n   moreauc.TPAUCLoss\n   moreauc.Nothing\n").problems
    assert "moreauc.FCCOLoss is public, but not in docs/reference" in problems
    assert "docs/reference lists moreauc.Nothing, which is not public" in problems
    assert "docs/reference lists moreauc.TPAUCLoss twice" in problems


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

    assert names(moreauc.FCCOLoss) == [*("num_blocks", "outer", "dim", "tau", "gamma", "bound", "initial")]
    assert names(moreauc.FCCOLoss.forward)[1:] == ["inner", "index", "previous_inner"]
    assert names(moreauc.TCCOLoss) == [
        *("num_outer", "num_inner", "outer", "middle", "dim_middle", "dim_inner", "tau1", "tau2", "gamma1", "gamma2"),
        *("bound", "initial_u", "initial_v"),
    ]
    assert names(moreauc.TCCOLoss.forward)[1:] == ["h", "outer_index", "inner_index", "previous_h"]
    assert names(moreauc.PreviousIterate) == ["model", "optimizer"]
    assert names(moreauc.theory.moreau_envelope)[1:3] == ["w", "rho_bar"]


def test_importing_the_package_is_light():
    """Plots and the command line come only when asked for."""
    code = "import sys, moreauc; print([m for m in ('rich', 'sklearn') if m in sys.modules]); import moreauc.metrics; "
    code += "import moreauc.train; print([m for m in ('matplotlib', 'typer', 'torch._dynamo') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["[]", "[]"]
