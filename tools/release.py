"""Build sdist and wheel, check them, and try the wheel in an empty environment: `make release`.

The README's examples are run against the installed wheel, in a folder without the checkout. The last lines are the
sizes of the files, and the times of imports and of `--help` beside that of importing torch.
"""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LARGEST = 200_000  # bytes of a file in the wheel
IN_SDIST = ("CITATION.cff", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "tests/oracles.py")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name the checkout
TIMES = 5  # of which the least is printed
TIMED = {
    "import torch": ["-c", "import torch"],
    "import torch, sklearn": ["-c", "import torch, sklearn.base"],
    "import moreauc": ["-c", "import moreauc"],
    "from moreauc import TPAUCLoss": ["-c", "from moreauc import TPAUCLoss"],
    "from moreauc import TPAUCClassifier": ["-c", "from moreauc import TPAUCClassifier"],
    "moreauc --help": ["-m", "moreauc", "--help"],
    "moreauc fit --help": ["-m", "moreauc", "fit", "--help"],
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS  # those of the tests
README = f"""
import doctest, sys, moreauc
print("moreauc from", moreauc.__file__)
found = doctest.testfile(sys.argv[1], module_relative=False, optionflags={FLAGS})
print(f"README: {{found.attempted}} examples, {{found.failed}} failures")
sys.exit(found.failed > 0 or not found.attempted)
"""


def run(*words: str | Path, cwd: Path = ROOT) -> None:
    print("$", " ".join(Path(word).name if isinstance(word, Path) else word for word in words), flush=True)
    subprocess.run([str(word) for word in words], check=True, cwd=cwd, env=ENVIRONMENT)


def seconds(*words: str | Path, cwd: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([str(word) for word in words], check=True, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def build() -> tuple[Path, Path]:
    """Return wheel and sdist, checked."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            top = entry.filename.split("/")[0]
            if (top != "moreauc" and not top.endswith(".dist-info")) or entry.file_size > LARGEST:
                raise SystemExit(f"{wheel.name} holds {entry.filename}, {entry.file_size:,} bytes")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := [name for name in IN_SDIST if name not in names]:
        raise SystemExit(f"{sdist.name} lacks {', '.join(missing)}")
    return wheel, sdist


def try_wheel(wheel: Path, folder: Path) -> dict[str, float]:
    """Install the wheel into an empty environment, try it, and return the least times."""
    venv.create(folder / "env", with_pip=True)
    python, place = folder / "env" / "bin" / "python", folder / "empty"
    place.mkdir()
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint")
    run(*install, ROOT / "constraints.txt", "torch")  # pinned, and first: see constraints.txt
    run(*install, ROOT / "constraints.txt", wheel)
    program = folder / "env" / "bin" / "moreauc"
    for words in (["--version"], ["--help"], ["example", "digits"]):
        run(program, *words, cwd=place)
    shutil.copy(ROOT / "README.md", place)
    run(python, "-c", README, place / "README.md", cwd=place)
    times = [{name: seconds(python, *words, cwd=place) for name, words in TIMED.items()} for _ in range(TIMES)]
    return {name: min(one[name] for one in times) for name in TIMED}  # others may use the machine


def main() -> None:
    wheel, sdist = build()
    with tempfile.TemporaryDirectory() as folder:
        times = try_wheel(wheel, Path(folder))
    for path in (wheel, sdist):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    for name, value in times.items():
        print(f"{name}: {value:.2f} s")


if __name__ == "__main__":
    main()
