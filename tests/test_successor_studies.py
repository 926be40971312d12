"""The studies of successors: parameters that scale as the theory says, slopes, and pairs with and without smoothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import __main__ as command_line
from experiments.engine import RECORDS, Setup, run_missing
from experiments.studies import load_studies, rates, smoothing
from moreauc.core.outer import prox_cvar
from moreauc.problems import CVaRAbsoluteLoss, HingedSquares

STUDIES = load_studies()


def run(study, out):
    setup = Setup(out)
    run_missing(study, setup, study.tasks(setup))
    command_line.make_report(study, out, "a command")
    records = [json.loads(line) for line in (out / RECORDS).read_text(encoding="utf-8").splitlines()]
    return records, json.loads((out / "report.json").read_text(encoding="utf-8"))


# ---- rates

# epsilon is halved: 2^6 times the steps of SONX, 2^5 times those of SONEX and ALEXR2
FACTORS = {
    "SONX": (64, {"lr": 1 / 16, "tau": 1 / 16, "momentum": 1.0, "smoothing": 1.0}),
    "SONX, momentum": (64, {"lr": 1 / 16, "tau": 1 / 16, "momentum": 1.0, "smoothing": 1.0}),
    "SONEX": (32, {"lr": 1 / 8, "tau": 1 / 16, "momentum": 1 / 4, "smoothing": 1 / 2}),
    "SONEX, no smoothing": (32, {"lr": 1 / 8, "tau": 1 / 16, "momentum": 1 / 4, "smoothing": 1.0}),
    "ALEXR2": (32, {"lr": 1 / 8, "tau": 1 / 8, "inner_steps": 8.0, "smoothing": 1 / 2}),
}


def parameters(method, steps, constants):
    found, lr = rates.at_horizon(method, HingedSquares(num_blocks=32), 4, steps, constants)
    values = {**vars(found), "lr": lr}
    if method.startswith("SONEX"):
        values["momentum"] = 1.0 - values["momentum"]  # the weight of a new gradient
    return values


@pytest.mark.parametrize("method", rates.METHODS)
def test_parameters_scale_with_the_number_of_steps_as_the_theory_says(method):
    times, factors = FACTORS[method]
    constants = {name: values[-1] for name, values in rates.GRIDS[method].items()}
    short, long = (parameters(method, steps, constants) for steps in (2000, 2000 * times))
    assert {name: long[name] for name in factors} == pytest.approx(
        {name: short[name] * factor for name, factor in factors.items()}, rel=0.02
    )  # inner steps are whole
    wrong = {**constants, "lr": 3.0 * constants["lr"]}
    assert parameters(method, 2000, wrong)["lr"] == pytest.approx(3.0 * short["lr"])


def test_parameters_at_a_horizon_by_hand():
    """n = 32, B1 = 8, B2 = 4: SONX has T = 2 / eps^6, SONEX T = 2 / eps^5 and ALEXR2 T = 1 / eps^5."""
    sonx = parameters("SONX", 2 * 2**6, {"tau": 0.5, "lr": 3.0})
    assert [sonx[name] for name in ("tau", "lr", "momentum")] == pytest.approx([0.5 * 4 / 16, 3 / 2 / 16, 0.0])
    assert parameters("SONX, momentum", 128, {"tau": 0.5, "lr": 3.0})["momentum"] == 0.9
    sonex = parameters("SONEX", 2 * 2**5, {"tau": 0.5, "lr": 3.0, "smoothing": 0.1, "momentum": 0.25})
    names = ("tau", "lr", "smoothing", "momentum")
    assert [sonex[name] for name in names] == pytest.approx([0.5 * 4 / 16, 3 / 2 / 8, 0.05, 0.25 * 8 / 4])
    plain = parameters("SONEX, no smoothing", 2 * 2**5, {"tau": 0.5, "lr": 3.0, "momentum": 0.25})
    assert plain == {**sonex, "smoothing": 0.0}
    alexr2 = parameters("ALEXR2", 2**5, {"tau": 0.5, "lr": 3.0, "smoothing": 0.1, "inner_steps": 2.0})
    names = ("tau", "lr", "smoothing", "inner_steps")
    assert [alexr2[name] for name in names] == pytest.approx([0.5 * 4 / 8, 3 / 8, 0.05, 2 * 8])
    assert alexr2["weight"] == 2.0 * HingedSquares(num_blocks=32).weak_convexity
    assert (
        rates.at_horizon("ALEXR2", CVaRAbsoluteLoss(), 2, 32, dict.fromkeys(rates.GRIDS["ALEXR2"], 1.0))[0].weight == 1
    )


def test_no_setting_reaches_the_largest_tau_or_momentum():
    study = STUDIES["rates"]
    for name in rates.PROBLEMS:
        make, _, _, samples = rates.ALL_PROBLEMS[name]
        problem = make()
        for method, grid in rates.GRIDS.items():
            largest = {key: max(values) for key, values in grid.items()}
            found, _ = rates.at_horizon(method, problem, samples, min(study.horizons), largest)
            assert found.tau < 0.5 and (not method.startswith("SONEX") or found.momentum > 0.0)


@pytest.mark.parametrize("method", rates.METHODS)
def test_every_method_of_rates_tries_as_many_settings(method):
    found = rates.settings(method, 24)
    assert len(found) == 24 and rates.settings(method, 24) == found
    if method == "SONEX, no smoothing":
        assert [{**setting, "smoothing": 0.0} for setting in found] == [
            {**setting, "smoothing": 0.0} for setting in rates.settings("SONEX", 24)
        ]
    else:
        assert len({json.dumps(setting) for setting in found}) == 24
    assert all(value in rates.GRIDS[method][key] for setting in found for key, value in setting.items())


def test_a_slope_by_hand():
    record = {"problem": "p", "method": "SONEX", "setting": {}, "samples": [100, 1000, 10_000]}
    factors = np.array([0.5, 1.0, 1.5])  # of the seeds, the same at every horizon: their draw shifts the line only
    exact = np.outer([1.0, 10**-0.25, 10**-0.5], factors)
    fit = rates.fit_slope({**record, "stationarity": exact.tolist()})
    assert fit["slope"] == pytest.approx(-0.25) and fit["std"] == pytest.approx(0.0, abs=1e-12)
    assert fit["residual"] == pytest.approx(1.0) and fit["predicted"] == -0.2
    assert fit["mean"][0] == pytest.approx(1.0) and fit["error"][0] == pytest.approx(0.5 / 3**0.5)
    bent = rates.fit_slope({**record, "stationarity": (exact * np.array([[1.0], [2.0], [1.0]])).tolist()})
    assert bent["slope"] == pytest.approx(-0.25) and bent["residual"] == pytest.approx(np.exp(2**0.5 / 3 * np.log(2)))
    noisy = exact.copy()
    noisy[2] = exact[2, ::-1]
    assert rates.fit_slope({**record, "stationarity": noisy.tolist()})["std"] > 0.01


def test_the_difference_to_sonx_is_of_pairs():
    sonx = {"problem": "p", "method": "SONX", "stationarity": [[9.0, 9.0], [0.1, 0.5]]}
    other = {"problem": "p", "method": "SONEX", "stationarity": [[1.0, 1.0], [0.2, 0.7]]}
    elsewhere = {"problem": "q", "method": "SONX", "stationarity": [[1.0, 1.0], [7.0, 7.0]]}
    mean, error = rates.against_sonx(other, [elsewhere, other, sonx])
    assert mean == pytest.approx(0.15) and error == pytest.approx(0.05)
    assert rates.against_sonx(sonx, [sonx]) == (0.0, 0.0)


def test_the_mean_over_a_run_is_over_its_steps(monkeypatch):
    """Iterates lie more densely at the beginning; stationarity 1 - t / T has the mean 1/2 all the same."""

    class Run:
        def __init__(self, marks, steps, seeds):
            self.step = torch.tensor(marks)
            self.stationarity = (1.0 - self.step.double() / steps).expand(len(seeds), -1)
            self.samples = 8 * self.step

    seen = []

    def minimize(problem, method, *, steps, records, seeds, **options):
        seen.append(records)
        return Run(records, steps, seeds)

    monkeypatch.setattr(rates, "minimize", minimize)
    constants = {"tau": 0.8, "lr": 1.0}
    mean, samples = rates.measure("SONX", rates.PROBLEMS[0], 400, constants, [0, 1], 20)
    assert mean == pytest.approx([0.5, 0.5]) and samples == 8 * 400
    assert seen[0][:4] == [0, 1, 4, 9] and seen[0][-1] == 400


def test_a_setting_that_diverges_is_not_chosen(monkeypatch):
    """Two of three settings leave the finite numbers, each in a way that `minimize` has."""
    errors = {0.5: FloatingPointError("minimize: the iterates left"), 1.0: ValueError("FCCOLoss: inner must be finite")}
    monkeypatch.setattr(rates, "GRIDS", {"SONX": {"tau": (0.8,), "lr": (0.5, 1.0, 2.0)}})
    made = rates.PROBLEMS[1]
    solve = rates.minimize

    def fail(problem, method, *, lr, **options):
        for constant, error in errors.items():
            if lr == rates.at_horizon("SONX", problem, 1, 20, {"tau": 0.8, "lr": constant})[1]:
                raise error
        return solve(problem, method, lr=lr, **options)

    monkeypatch.setattr(rates, "minimize", fail)
    found = rates.tune_and_measure(problem=made, method="SONX", horizons=[20], trials=3, points=2, seeds=2)
    assert found["setting"]["lr"] == 2.0 and len(found["tried"]) == 3
    monkeypatch.setattr(rates, "GRIDS", {"SONX": {"tau": (0.8,), "lr": (0.5, 1.0)}})
    with pytest.raises(ValueError, match=r"hinge of .*, SONX: every setting diverged"):
        rates.tune_and_measure(problem=made, method="SONX", horizons=[20], trials=2, points=2, seeds=2)


def test_rates(tmp_path):
    study = STUDIES["rates"].smoke()
    records, report = run(study, tmp_path)
    assert len(records) == len(rates.METHODS) == len(report["fits"])
    assert len(STUDIES["rates"].tasks(Setup(tmp_path))) == 3 * len(rates.METHODS)
    for record in records:
        assert np.isfinite(record["stationarity"]).all() and np.shape(record["stationarity"]) == (2, 2)
        best = max(record["tried"], key=lambda entry: entry["validation"])
        assert record["setting"].items() <= best.items()
    assert (tmp_path / "rates.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert 'src="rates.png"' in (tmp_path / "index.html").read_text(encoding="utf-8")


# ---- smoothing


@pytest.mark.parametrize(("case", "fraction"), [("digits", 0.5), ("digit bags", 0.5), ("planted groups", 0.1)])
def test_runs_of_a_pair_differ_in_smoothing_only(case, fraction):
    part = smoothing.load_part(case, 0, None)
    plain, smooth = (getattr(loss, "criterion", loss) for loss in map(part.loss, (0.0, 0.1)))
    assert plain.smoothing == 0.0 and type(plain) is type(smooth)
    assert plain.needs_previous and smooth.needs_previous
    first, second = (part.model().state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    # the envelope's slope is the full one a width above the threshold, and half of it half a width above
    u, s = torch.tensor([0.3, 0.35, 0.4, 0.6], dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    slope = (u - prox_cvar(u, s, fraction, smooth.smoothing)) / smooth.smoothing
    assert slope.tolist() == pytest.approx([0.0, 0.5 / fraction, 1 / fraction, 1 / fraction])


def test_no_width_is_the_loss_without_smoothing():
    """The same run with a width that is next to nothing ends next to the one without."""
    part = smoothing.load_part("planted groups", 0, None)
    plain, near, far = (smoothing.run(part, "SGD, momentum", width, 0.1, 0, 8) for width in (0.0, 1e-9, 1.0))
    for key in ("objective", "test"):
        assert near[key] == pytest.approx(plain[key], abs=1e-5)
        assert abs(far[key] - plain[key]) > 1e-3


def test_a_choice_is_by_validation_and_the_objective_the_lowest():
    tried = [
        {"lr": 0.1, "validation": [0.5, 0.9], "objective": 0.3, "test": 0.4},
        {"lr": 0.2, "validation": [0.5, 0.95], "objective": 0.5, "test": 0.6},
        {"lr": 0.3, "validation": None, "objective": None, "test": None},
    ]
    assert smoothing.choose(tried) == {"objective": 0.3, "test": 0.6}
    with pytest.raises(ValueError, match="every setting diverged"):
        smoothing.choose(tried[2:])


def records_by_hand():
    """Two seeds; smoothing improves the test score by its width (and by a tenth of the seed), the objective never."""
    found = []
    for seed in range(2):
        for optimizer in smoothing.RATES:
            for width in (0.0, *smoothing.WIDTHS) if optimizer != "SGD" else (0.0,):
                score = 0.2 + width * (1 + seed / 10)
                tried = [{"lr": lr, "validation": [lr], "objective": 1.0, "test": score + lr} for lr in (0.1, 0.2)]
                found.append({"dataset": "c", "optimizer": optimizer, "width": width, "seed": seed, "tried": tried})
    return found


def test_the_summary_of_smoothing_by_hand():
    results = smoothing.summary(records_by_hand(), 2)
    gains = {(gain["optimizer"], gain["width"]): gain for gain in results["gains"]}
    assert set(gains) == {(o, w) for o in ("SGD, momentum", "Adam") for w in (*smoothing.WIDTHS, "tuned")}
    gain = gains["Adam", 0.1]["test"]
    assert gain["mean"] == pytest.approx(0.105) and gain["error"] == pytest.approx(0.005)
    assert gain["p"] == pytest.approx(2 / np.pi * np.arctan(1 / 21))  # Student's t with one degree of freedom
    assert gains["Adam", 0.1]["objective"] == {"mean": 0.0, "error": 0.0, "p": None}
    cells = {cell["method"]: cell for cell in results["cells"]}
    assert list(cells) == list(smoothing.METHODS_SHOWN)
    assert cells["Adam"]["test"] == {"mean": 0.4, "std": 0.0} and cells["SGD"]["objective"]["mean"] == 1.0
    expected = []
    for seed in range(2):  # as many settings as the others, drawn from widths and rates
        every = [(lr, 0.2 + width * (1 + seed / 10) + lr) for width in smoothing.WIDTHS for lr in (0.1, 0.2)]
        expected.append(max(random.Random(seed).sample(every, 2), key=lambda entry: entry[0])[1])
    assert cells["SONEX"]["test"]["mean"] == pytest.approx(np.mean(expected))
    columns, rows = smoothing.gain_table(results)
    assert len(rows) == 4 and all(len(row) == len(columns) for row in rows)
    assert rows[0][2] == "objective" and rows[0][3] == "+0.000 ± 0.000"
    one = smoothing.summary([r for r in records_by_hand() if r["seed"] == 0], 2)
    assert one["gains"][0]["test"]["error"] is None and smoothing.gain_table(one)[1][2][3] == "+0.010"


def test_smoothing(tmp_path):
    records, report = run(replace(STUDIES["smoothing"].smoke(), sets=("planted groups",)), tmp_path)
    assert len(records) == 2 * (1 + 2 * 4) and all(len(record["tried"]) == 2 for record in records)
    assert [cell["method"] for cell in report["cells"]] == list(smoothing.METHODS_SHOWN)
    assert len(report["gains"]) == 2 * 4
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 2
