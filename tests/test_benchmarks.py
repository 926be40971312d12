"""Each benchmark program loads and answers --help; code of the page for users of LibAUC gives what its report says."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_program_loads_and_shows_its_options(name, monkeypatch, capsys):
    module = importlib.import_module(name)
    if hasattr(module, "main") and hasattr(module, "argparse"):
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit, match="0"):
            module.main()
        assert "usage:" in capsys.readouterr().out


def test_the_page_for_users_of_libauc_gives_what_was_found_beside_it():
    page = importlib.import_module("libauc_page")
    report = json.loads((FOLDER / "reports" / "libauc.json").read_text(encoding="utf-8"))
    rows = {row["section"]: row for row in report["sections"]}
    for section in page.sections():
        row, own = rows[section.title], page.run_code(section.ours)
        if "found" in row:
            assert own["found"] == pytest.approx(row["found"], rel=1e-4)
        else:
            assert own["gradient"] == pytest.approx(row["as on the page"]["gradient"], rel=1e-3, abs=1e-5)
