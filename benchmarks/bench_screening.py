"""From an assay to a ranked library: time and memory of `moreauc fit --smiles` and of `moreauc predict --top`.

1. `fit` on the HIV assay (41,127 molecules), one process; then `predict --top 500` on the same table.
2. `predict --top 500` on libraries of several sizes, made by repeating these molecules: the peak memory must not grow.
   Beside each, in turn, RDKit alone reads some of the same molecules and makes their fingerprints, in one process.

`python benchmarks/bench_screening.py --data HIV.csv.gz --out FILE` writes the report. Commands run as processes of
their own, whose peak memory the system reports. `--part defaults --data tox21.csv --targets NR-AhR,SR-ARE` gives
instead the scores of `TPAUCLinear` with several kinds of fingerprints, on scaffolds that it was not trained on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from bench_pairs import write

from moreauc import TPAUCLinear
from moreauc.app.molecules import SmilesFingerprints
from moreauc.app.report.pages import versions
from moreauc.app.smiles import SmilesReader
from moreauc.data.duplicates import number_equal, take_together
from moreauc.metrics import bedroc_score, enrichment_factor, tpauc_score

TOP = 500
KINDS: tuple[tuple[Literal["bit", "count"], int, int], ...] = (
    *(("bit", 2, 2048), ("count", 2, 2048), ("bit", 2, 4096)),
    *(("count", 2, 4096), ("count", 3, 2048)),
)
ALONE = """
import csv, itertools, sys, time
from rdkit import Chem, rdBase
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
quiet = rdBase.BlockLogs()
generator = GetMorganGenerator(radius=2, fpSize=4096)
with open(sys.argv[1]) as file:
    smiles = [row["smiles"] for row in itertools.islice(csv.DictReader(file), 0, None, int(sys.argv[2]))]
begin, busy = time.perf_counter(), time.process_time()
for text in smiles:
    molecule = Chem.MolFromSmiles(text)
    if molecule is not None:
        generator.GetFingerprint(molecule)
print(len(smiles), time.perf_counter() - begin, time.process_time() - busy)
"""


def measured(*words: object) -> dict[str, float]:
    """Run a command; return its seconds on the clock and on the processor, and its peak memory in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(map(str, words))} ended with status {status}")
    unit = 1 if platform.system() == "Darwin" else 1024
    return {
        "seconds": round(seconds, 1),
        "processor seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak memory in MB": round(usage.ru_maxrss * unit / 1e6),
    }


def write_library(source: Path, size: int, library: Path) -> None:
    """Write a table of so many molecules, those of `source` again and again."""
    with open(source, encoding="utf-8") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    with open(library, "w", encoding="utf-8") as file:
        file.write("smiles\n")
        file.writelines(f"{text}\n" for text in itertools.islice(itertools.cycle(smiles), size))


def alone(library: Path, step: int) -> tuple[float, float]:
    """Return the molecules that RDKit alone turns into fingerprints per second of the clock and of the processor.

    It reads every row whose number is a multiple of `step`.
    """
    words = [sys.executable, "-c", ALONE, str(library), str(step)]
    found = subprocess.run(words, capture_output=True, check=True)
    count, seconds, busy = map(float, found.stdout.split())
    return count / seconds, count / busy


def bench(data: Path, target: str, sizes: Sequence[int], number: int, work: Path) -> dict[str, Any]:
    """Return the numbers of all commands."""
    if data.suffix == ".gz":
        with gzip.open(data) as packed:
            (work / "assay.csv").write_bytes(packed.read())
        data = work / "assay.csv"
    run, command = work / "run", ("-m", "moreauc")
    options = ("--smiles", "smiles", "--target", target, "--invalid", "skip", "--out", run)
    report: dict[str, Any] = {"fit": measured(*command, "fit", data, *options)}
    top = ("--top", TOP, "--invalid", "skip", "--force", "--out", work / "hits.csv")
    report["predict on the same table"] = measured(*command, "predict", run, data, *top)
    rows = []
    for size in sizes:
        library = work / f"library{size}.csv"
        write_library(data, size, library)
        before = alone(library, max(1, size // number))
        row: dict[str, Any] = {"molecules": size, **measured(*command, "predict", run, library, *top)}
        speeds = np.mean([before, alone(library, max(1, size // number))], axis=0)
        for place, name in enumerate(("seconds", "processor seconds")):
            own = size / row[name]
            row[f"molecules per {name.removesuffix('s')}"] = round(own)
            row[f"molecules per {name.removesuffix('s')}, RDKit alone"] = round(float(speeds[place]))
            row[f"share of RDKit's speed, {name}"] = round(own / float(speeds[place]), 3)
        rows.append(row)
        library.unlink()
    return {**report, "libraries": rows}


def compare_fingerprints(data: Path, target: str, seeds: int) -> list[dict[str, Any]]:
    """Return the mean scores of a linear model over random splits by scaffolds, for each kind of fingerprint."""
    frame = pd.read_csv(data)
    frame = frame[frame[target].notna()]
    plain = SmilesFingerprints()
    invalid = [one.row for one in plain.find_invalid(frame["smiles"])]
    frame = frame.drop(index=frame.index[invalid])
    smiles, labels = frame["smiles"].tolist(), frame[target].to_numpy().astype(int)
    scaffolds = number_equal(np.array(plain.scaffolds(smiles), dtype=object))
    rows = []
    for kind, radius, size in KINDS:
        inputs = SmilesFingerprints(kind=kind, radius=radius, size=size).transform(smiles)
        points = []
        for seed in range(seeds):
            held = take_together(scaffolds, labels, 0.25, np.random.default_rng(seed))
            model = TPAUCLinear(min_tpr=0.0, max_fpr=0.1, random_state=0).fit(inputs[~held], labels[~held])
            found, known = model.decision_function(inputs[held]), labels[held]
            area = tpauc_score(known, found, min_tpr=0.0, max_fpr=0.1)
            points.append((area, bedroc_score(known, found), enrichment_factor(known, found, fraction=0.01)))
        mean = dict(zip(("tpauc", "bedroc", "ef_1"), np.mean(points, axis=0).tolist(), strict=True))
        rows.append({"target": target, "kind": kind, "radius": radius, "size": size, "splits": seeds, **mean})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="the assay, CSV with a column smiles, perhaps packed by gzip"
    )
    parser.add_argument("--targets", default="HIV_active", help="column of the classes; with --part defaults several")
    parser.add_argument("--sizes", default="100000,1000000", help="molecules of the libraries")
    parser.add_argument("--alone", type=int, default=10_000, help="molecules that RDKit alone reads")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=("speed", "defaults"), default="speed")
    parser.add_argument("--seeds", type=int, default=2, help="splits to try fingerprints on")
    options = parser.parse_args()
    names = ("sizes", "alone") if options.part == "speed" else ("targets", "seeds")
    report: dict[str, Any] = {
        "title": "molecules from SMILES to a ranked list",
        "command": f"python benchmarks/bench_screening.py --part {options.part} --data {options.data.name} "
        + " ".join(f"--{name} {getattr(options, name)}" for name in names),
        "versions": {**versions(), "rdkit": SmilesReader().version},
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, {os.cpu_count()} cores, one process",
    }
    if options.part == "speed":
        with tempfile.TemporaryDirectory() as folder:
            sizes = [int(size) for size in options.sizes.split(",")]
            report |= bench(options.data, options.targets, sizes, options.alone, Path(folder))
    else:
        targets = options.targets.split(",")
        report["rows"] = [row for name in targets for row in compare_fingerprints(options.data, name, options.seeds)]
    write(report, options.out)


if __name__ == "__main__":
    main()
