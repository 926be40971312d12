"""ResNet20 on bags of patches in several processes on one device, as the experiments on tissue are run.

A step by SONT, operation by operation and as one CUDA graph, in 1, 2, 4, ... processes of one thread each: what is the
most that a device does in a second, and how many processes does that take? Batches are ready on the device. Torch is
set as in the experiments. On one GPU start NVIDIA's MPS before, or the processes take turns.
`python benchmarks/bench_tissue.py --device cuda --out FILE` writes medians with their quartiles.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from bench_models import numbers, process_rows, processes
from bench_pairs import write
from model_steps import GAMMAS, QUICK, Sizes, resnet_step

from moreauc.app.report.pages import versions


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="tiny sizes and short windows: does it run?")
    parser.add_argument("--processes", type=numbers, default=[1, 2, 4, 8, 16], help="as 1,2,4")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.windows, options.window = (2, 0.1) if options.quick else (3, 1.0)
    return options


def main() -> None:
    options = parse()
    sizes = QUICK if options.quick else Sizes()
    rows: list[dict[str, Any]] = []
    for gamma in GAMMAS[-1:] if options.quick else GAMMAS:
        for graphed in (False, True):
            rates = processes(resnet_step, (sizes, gamma, graphed), options)
            rows.append({"gamma": gamma, "graphed": graphed, **process_rows(rates, options)})
    listed = ",".join(map(str, options.processes))
    result = {
        "title": "ResNet20 by SONT in several processes on one device",
        "command": f"python benchmarks/bench_tissue.py --device {options.device} --processes {listed}"
        + (" --quick" if options.quick else ""),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        "numbers": "float32, deterministic algorithms; products on a GPU may use TF32",
        "CUDA_MPS_PIPE_DIRECTORY is set": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "sizes": asdict(sizes),
        "rows": rows,
    }
    write(result, options.out)


if __name__ == "__main__":
    main()
