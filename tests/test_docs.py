"""Links and commands of the pages of the root folder exist; `make docs` checks the links of docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert links and all((page.parent / link).exists() for link in links if not link.startswith("http"))


def test_commands_exist():
    rules = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for page in [*PAGES, *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?:^|`)make ([\w-]+)(?:`| *$|  )", text, re.MULTILINE):
            assert name in rules, (page.name, name)
        for file in re.findall(r"python ((?:benchmarks|tools|examples)/\S+\.py)", text):
            assert (ROOT / file).exists(), (page.name, file)
