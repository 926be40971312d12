"""What is published: versions, bounds, the page on the package index, the citation, and what the package imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.version import Version

import moreauc

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
REPOSITORY = PROJECT["project"]["urls"]["Source"]


def requirements() -> list[str]:
    every = [*PROJECT["project"]["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    return sorted({line for line in every if not line.startswith("moreauc[")})


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.sub(r"\[.*", "", name)).lower()


def pinned(name: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return {normal(key): Version(version) for key, version in (line.split("==") for line in lines)}


def test_the_version_is_that_of_changes_and_citation():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\d[\w.]*), (\d{4}-\d\d-\d\d)$", changes, flags=re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert version == moreauc.__version__
    assert f"\nversion: {version}\n" in citation and f"\ndate-released: {date}\n" in citation
    assert re.findall(r"family-names: (\w+)", citation) == ["Hu", "Zhu", "Yang"]


def test_the_lowest_versions_are_the_bounds():
    lowest = pinned("lowest.txt")
    bounds = {normal(name): Version(bound) for name, bound in (line.split(">=") for line in requirements())}
    assert lowest == bounds


def test_the_pinned_versions_are_not_below_the_lowest():
    lowest, used = pinned("lowest.txt"), pinned("constraints.txt")
    assert all(lowest[name] <= version for name, version in used.items() if name in lowest)


# Imports that nothing declared installs: typer once brought click, and then did not.
NAMES = {"sklearn": "scikit-learn", "PIL": "pillow", "yaml": "pyyaml"}
OPTIONAL = {"sklearn", "joblib", "threadpoolctl"}  # scikit-learn brings the other two


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).split(".")[0])
    return found


def test_the_package_imports_only_what_it_requires():
    declared = {normal(re.split(r"[><=\[]", line)[0]) for line in requirements()}
    for path in (ROOT / "src").rglob("*.py"):
        for name in imported(path) - set(sys.stdlib_module_names) - {"moreauc"} - OPTIONAL:
            assert normal(NAMES.get(name, name)) in declared, (path.name, name)


def test_the_command_line_needs_no_click():
    code = "import sys; sys.modules['click'] = None; from moreauc.app.cli import app; app(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, moreauc.__version__), done.stderr


@pytest.fixture(scope="module")
def page() -> str:
    """The long description, as it is built."""
    return str(ProjectMetadata(str(ROOT), PluginManager()).core.readme)


def test_links_on_the_package_index_are_absolute(page):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert len(links) == len(re.findall(r"\]\(", readme)) > 20
    assert all(link.startswith("https://") for link in links)
    tag = f"v{moreauc.__version__}"
    for mark, link in re.findall(r"(!?)\[[^]]*\]\(([^)]*)\)", page):
        if link.startswith(REPOSITORY):
            kind, path = ("raw", "blob")[not mark], link.removeprefix(f"{REPOSITORY}/")
            assert path.startswith(f"{kind}/{tag}/") and path.partition(f"{tag}/")[2] in readme, link
    assert f"]({REPOSITORY}/raw/{tag}/docs/images/" in page and f"]({REPOSITORY}/blob/{tag}/docs/guides.md)" in page
    assert 'src="' not in page and "$HFPR" not in page


def test_the_address_is_in_one_file():
    words = (REPOSITORY, PROJECT["project"]["urls"]["Documentation"])
    kinds = ("*.*", "docs/*.*", "src/**/*.py", "examples/**/*.py", "experiments/**/*.py", "benchmarks/*.py")
    paths = [path for kind in kinds for path in ROOT.glob(kind) if path.is_file()]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    assert len(texts) > 200
    assert [name for name, text in texts.items() if any(word in text for word in words)] == ["pyproject.toml"]
