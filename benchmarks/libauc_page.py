"""The pairs of code in docs/libauc.md, LibAUC's and ours, run as they stand there, and compared.

A section of the page has a block for LibAUC, and after it one for us, a doctest. The data above the first section are
made before each. Compared are the value and the gradient in the weights of the first step, or `found`, where a block
has no loss. A second run has 1.0 in place of the averaging weights 0.9, so that tables that start at 0 hold what was
observed, as ours do. LibAUC runs in an environment of its own, see `peer.py`.

`python benchmarks/libauc_page.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import doctest
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_pairs import write
from gallery_peer import run_code
from peer import HERE, Peer, environment

from moreauc.app.report.pages import versions

PAGE = HERE.parent / "docs" / "libauc.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """A section of the page: its title and, with what both need, the code of LibAUC and ours."""

    title: str
    libauc: str
    ours: str


def sections() -> list[Section]:
    """Return the pairs of the page."""
    part = PAGE.read_text(encoding="utf-8").split("\n## Side by side\n")[1].split("\n## ")[0]
    first, *others = part.split("\n### ")
    data, path = map(_source, _BLOCK.findall(first))
    found = []
    earlier = data + path  # a doctest goes on where the one before ended
    for text in others:
        libauc, ours = _BLOCK.findall(text)
        earlier += _source(ours)
        found.append(Section(text.splitlines()[0], data + libauc, earlier))
    return found


def _source(block: str) -> str:
    return "".join(example.source for example in doctest.DocTestParser().get_examples(block))


def compare(section: Section, peer: Peer) -> dict[str, Any]:
    """Return what both sides of a section gave."""
    row: dict[str, Any] = {"section": section.title, "code": section.libauc}
    for name in ("as on the page", "averaging weight 1"):
        libauc, ours = (code.replace("0.9", "1.0") if "1" in name else code for code in section[1:])
        theirs = peer.ask("run_code", code=libauc)
        if "error" in theirs:
            raise RuntimeError(f"{section.title}: {theirs['error']}")
        own = run_code(ours)
        if "found" in own:
            return row | {"found": own["found"], "LibAUC found": theirs["found"]}
        a, b = (torch.tensor(side["gradient"], dtype=torch.float64) for side in (own, theirs))
        row[name] = {
            **{"value": own["value"], "LibAUC value": theirs["value"], "gradient": own["gradient"]},
            "norm over ours": (b.norm() / a.norm()).item(),
            "cosine": (a @ b / a.norm() / b.norm()).item(),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environment", type=Path, default=HERE / ".libauc-venv", help="where LibAUC is installed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "title": "the code of docs/libauc.md",
        "command": "python benchmarks/libauc_page.py",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, float32",
    }
    with Peer(environment(options.environment)) as peer:
        result |= {"peer": peer.ask("versions"), "names": peer.ask("names")}
        result["sections"] = [compare(section, peer) for section in sections()]
    write(result, options.out)


if __name__ == "__main__":
    main()
