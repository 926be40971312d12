"""CVaR over negatives: a loop over pairs as oracle, and agreement of the three methods."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from oracles import smooth_ramp, smooth_ramp_slope
from torch import Tensor

from moreauc.core import pairs, sorted_pairs
from moreauc.core.pairs import Method, Pairs, cvar_and_vjp, cvar_over_negatives
from moreauc.core.surrogates import Surrogate, get_surrogate

VALUES: dict[str, Callable[[float, float], float]] = {
    "squared_hinge": lambda z, m: max(m + z, 0.0) ** 2,
    "hinge": lambda z, m: max(m + z, 0.0),
    "squared": lambda z, m: (m + z) * (m + z),
    "logistic": lambda z, m: math.log1p(math.exp(-abs(m + z))) + max(m + z, 0.0),
    "sigmoid": lambda z, m: 1.0 / (1.0 + math.exp(-(m + z))) if m + z > -700 else 0.0,
    "smooth_ramp": smooth_ramp,
}
SLOPES: dict[str, Callable[[float, float], float]] = {
    "squared_hinge": lambda z, m: 2 * max(m + z, 0.0),
    "hinge": lambda z, m: float(m + z > 0),
    "squared": lambda z, m: 2 * (m + z),
    "logistic": lambda z, m: 1.0 / (1.0 + math.exp(-(m + z))),
    "sigmoid": lambda z, m: 1.0 / (2.0 + math.exp(m + z) + math.exp(-(m + z))),
    "smooth_ramp": smooth_ramp_slope,
}
SORTABLE = ["squared_hinge", "hinge", "smooth_ramp"]
CASES: list[tuple[str, Method]] = [
    (name, method)
    for name in VALUES
    for method in ("pairs", "tiles", "sorted")
    if method != "sorted" or name in SORTABLE
]
SIZES = [(1, 1), (1, 7), (9, 1), (13, 17), (30, 11)]

cases = pytest.mark.parametrize(("name", "method"), CASES)
sizes = pytest.mark.parametrize("size", SIZES, ids=str)
devices = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_TILE", {"cpu": 48, "cuda": 48})


def oracle(
    name: str,
    margin: float,
    beta: float,
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    weight: Tensor,
    counts: list[float] | None = None,
) -> list[Tensor]:
    """Return psi, slope, and the gradients of sum(weight * psi), by a loop over the pairs in Python floats."""
    counts = counts or [1.0] * len(negative)
    total = beta * sum(counts)
    psi, slope = [], []
    left, right = [[] for _ in positive], [[] for _ in negative]
    for i, (h_i, s, w) in enumerate(zip(positive.tolist(), threshold.tolist(), weight.tolist(), strict=True)):
        excess, active = [], []
        for j, h_j in enumerate(negative.tolist()):
            z, c = (h_j - h_i, margin), counts[j]
            if VALUES[name](*z) > s:
                active.append(c)
                excess.append(c * (VALUES[name](*z) - s))
                left[i].append(-w * c * SLOPES[name](*z) / total)
                right[j].append(w * c * SLOPES[name](*z) / total)
        psi.append(s + math.fsum(excess) / total)
        slope.append(1 - math.fsum(active) / total)
    sums = [[math.fsum(entry) for entry in side] for side in (left, right)]
    return [torch.tensor(entry, dtype=torch.float64) for entry in (psi, slope, *sums)]


def evaluate(
    method: Method,
    surrogate: Surrogate,
    beta: float,
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    weight: Tensor,
) -> list[Tensor]:
    positive, negative = positive.clone().requires_grad_(), negative.clone().requires_grad_()
    psi, slope = cvar_over_negatives(positive, negative, threshold, surrogate=surrogate, max_fpr=beta, method=method)
    assert not slope.requires_grad
    return [psi.detach(), slope, *torch.autograd.grad(psi, (positive, negative), weight)]


def _margin(name: str, margin: float) -> float:
    """Return the margin, or another where the ramp may not have it."""
    return 0.2 if name == "smooth_ramp" and margin == 0.0 else margin


def draw(size: tuple[int, int], kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b1, b2 = size
    positive, negative = torch.randn(b1, dtype=dtype), torch.randn(b2, dtype=dtype)
    threshold, weight = torch.rand(b1, dtype=dtype) * 2 - 0.4, torch.randn(b1, dtype=dtype)
    if kind == "negative":
        threshold = -torch.rand(b1, dtype=dtype) - 0.1
    elif kind == "zero":
        threshold = torch.zeros(b1, dtype=dtype)
    elif kind == "none active":
        threshold = torch.full((b1,), 1e3, dtype=dtype)
    elif kind == "equal":
        positive, negative = torch.full_like(positive, 0.25), torch.full_like(negative, 0.25)
    elif kind == "ties":  # losses at margin 1 and thresholds are whole numbers, so equality is met and exact
        positive, negative = (torch.randint(-2, 3, (n,)).to(dtype) for n in size)
        threshold = torch.randint(-1, 5, (b1,)).to(dtype)
    return positive, negative, threshold, weight


@cases
@sizes
@pytest.mark.parametrize("kind", ["mixed", "negative", "zero", "none active", "equal", "ties"])
@pytest.mark.parametrize(("margin", "beta"), [(1.0, 0.3), (0.0, 1.0)])
def test_matches_the_loop(
    name: str, method: Method, size: tuple[int, int], kind: str, margin: float, beta: float
) -> None:
    margin = _margin(name, margin)
    data = draw(size, kind, torch.float64)
    expected = oracle(name, margin, beta, *data)
    for ours, theirs in zip(evaluate(method, get_surrogate(name, margin), beta, *data), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@cases
@sizes
@pytest.mark.parametrize("kind", ["mixed", "negative", "ties"])
def test_matches_the_loop_in_single_precision(name: str, method: Method, size: tuple[int, int], kind: str) -> None:
    data = draw(size, kind, torch.float32)
    expected = oracle(name, 1.0, 0.4, *data)
    for ours, theirs in zip(evaluate(method, get_surrogate(name, 1.0), 0.4, *data), expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-6, atol=2e-6)


RANGES: dict[str, Callable[[int], Tensor]] = {
    "wide": lambda n: 1e4 * torch.randn(n, dtype=torch.float64),
    "far": lambda n: 1e4 + torch.randn(n, dtype=torch.float64),
    "narrow and far": lambda n: 1e4 + 1e-6 * torch.randn(n, dtype=torch.float64),
    "heavy tails": lambda n: torch.randn(n, dtype=torch.float64) ** 9,
    "outlier": lambda n: torch.cat([torch.tensor([1e7], dtype=torch.float64), torch.randn(n - 1, dtype=torch.float64)]),
    "tiny": lambda n: 1e-30 * torch.randn(n, dtype=torch.float64),
    "ties": lambda n: torch.randint(-3, 4, (n,)).double() / 7,
}


@pytest.mark.parametrize("name", SORTABLE)
@pytest.mark.parametrize("outlier", [1e7, -1e7])
@pytest.mark.parametrize("side", [0, 1])
def test_sorting_keeps_every_entry_accurate_beside_an_outlier(name: str, outlier: float, side: int) -> None:
    data = draw((50, 70), "zero", torch.float64)
    data[side][0] = outlier
    data[3].abs_()
    expected = oracle(name, 1.0, 0.3, *data)
    # sums of a bounded loss are accurate relative to the largest possible one, not each to itself
    atol = 1e-14 if name == "smooth_ramp" else 0.0
    for mine, theirs in zip(evaluate("sorted", get_surrogate(name, 1.0), 0.3, *data), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=atol)


@devices
@pytest.mark.parametrize("name", SORTABLE)
@pytest.mark.parametrize("spread", RANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_methods_agree_and_slopes_are_equal(
    name: str, spread: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_TILE", {"cpu": 1 << 14, "cuda": 1 << 14})
    positive, negative = RANGES[spread](307).to(device, dtype), RANGES[spread](411).to(device, dtype)
    surrogate = get_surrogate(name, 0.3)
    # Each threshold is the loss of one of the positive's own pairs: all decisions there hang on rounding.
    threshold = surrogate.value(negative[torch.randint(0, 411, (307,), device=device)] - positive)
    threshold[::9] *= -1.0
    weight = torch.rand(307, device=device, dtype=dtype)
    first, *others = (
        evaluate(method, surrogate, 0.3, positive, negative, threshold, weight)
        for method in ("pairs", "sorted", "tiles")
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    flat = 1.0 / 0.3 if name == "smooth_ramp" else 0.0  # the ramp's largest slope: all pairs may be far apart
    for other in others:
        assert torch.equal(other[1], first[1])
        for mine, theirs in zip(other, first, strict=True):
            largest = max(flat, theirs.abs().max().item())
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * largest)


THRESHOLDS = [-0.5, 0.0, 1e-9, 0.3, 0.5, 0.8, 1.0, 2.0]


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("margin", [1e-3, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_sorted_ramp_equals_pairs(
    threshold: float, margin: float, ties: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if weighted:
        monkeypatch.setattr(sorted_pairs, "_LARGE", 1)

    def scores(n: int) -> Tensor:
        return (torch.randint(-40, 41, (n,)).double() / 20) if ties else torch.randn(n, dtype=torch.float64)

    positive, negative, outer = scores(150), scores(230), torch.randn(150, dtype=torch.float64)
    if margin == 1e-3:
        positive[:100] = negative[:100] + 2e-3 * torch.rand(100, dtype=torch.float64) - 1e-3
    own = torch.rand(230, dtype=torch.float64) * (torch.rand(230) < 0.8) if weighted else None
    left_out = torch.rand(230) < 0.3
    for leave, total in ((None, 100.0), (left_out, torch.tensor(50.0, dtype=torch.float64))):
        data = Pairs(positive, negative, total, leave, own)
        level, surrogate = torch.full_like(positive, threshold), get_surrogate("smooth_ramp", margin)
        (psi, slope, vjp), *others = (
            cvar_and_vjp(data, level, surrogate, method) for method in ("pairs", "sorted", "tiles")
        )
        for value, other_slope, other_vjp in others:
            torch.testing.assert_close(value, psi, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(other_slope(), slope(), rtol=1e-12, atol=1e-13)
            for mine, theirs in zip(other_vjp(outer), vjp(outer), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12 / margin)


@cases
@pytest.mark.parametrize("kind", ["mixed", "negative", "zero", "ties"])
def test_weights_of_the_negatives_match_the_loop(name: str, method: Method, kind: str) -> None:
    positive, negative, threshold, outer = draw((13, 17), kind, torch.float64)
    counts = [float(k % 4) for k in range(17)]
    own = torch.tensor(counts, dtype=torch.float64)
    expected = oracle(name, 1.0, 0.3, positive, negative, threshold, outer, counts)
    data = Pairs(positive, negative, 0.3 * sum(counts), None, own)
    psi, slope, vjp = cvar_and_vjp(data, threshold, get_surrogate(name, 1.0), method)
    repeated = Pairs(positive, negative.repeat_interleave(own.long()), 0.3 * sum(counts))
    again, same_slope, _ = cvar_and_vjp(repeated, threshold, get_surrogate(name, 1.0), method)
    for mine, theirs in zip((psi, slope(), *vjp(outer), again, same_slope()), [*expected, *expected[:2]], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["pairs", "tiles", "sorted"])
def test_only_the_scores_get_a_gradient_and_each_may_be_alone(method: Method) -> None:
    positive, negative, threshold, _ = draw((5, 6), "mixed", torch.float32)
    surrogate = get_surrogate("hinge")
    threshold.requires_grad_()
    both = evaluate(method, surrogate, 0.5, positive, negative, threshold, torch.ones(5))
    for side in (0, 1):
        data = [positive.clone(), negative.clone()]
        data[side].requires_grad_()
        psi, _ = cvar_over_negatives(*data, threshold, surrogate=surrogate, max_fpr=0.5, method=method)
        psi.sum().backward()
        assert torch.equal(data[side].grad, both[2 + side])
    assert threshold.grad is None
    psi, _ = cvar_over_negatives(positive, negative, threshold, surrogate=surrogate, max_fpr=0.5, method=method)
    assert not psi.requires_grad


@pytest.mark.parametrize("method", ["pairs", "tiles", "sorted"])
def test_types_are_widened_and_gradients_come_back_in_the_type_of_the_scores(method: Method) -> None:
    surrogate = get_surrogate("squared_hinge")
    positive = torch.randn(4, dtype=torch.bfloat16, requires_grad=True)
    negative, threshold = torch.randn(5, dtype=torch.float16), torch.zeros(4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        psi, slope = cvar_over_negatives(positive, negative, threshold, surrogate=surrogate, max_fpr=1.0, method=method)
    assert psi.dtype == slope.dtype == torch.float32
    psi.sum().backward()
    assert positive.grad is not None and positive.grad.dtype == torch.bfloat16
    wide = threshold.double()
    assert cvar_over_negatives(positive, negative, wide, surrogate=surrogate, max_fpr=1.0)[0].dtype == torch.float64


@pytest.mark.parametrize("method", ["pairs", "tiles", "sorted"])
def test_second_derivatives_are_refused(method: Method) -> None:
    positive, negative, threshold, _ = draw((3, 4), "negative", torch.float64)
    psi, _ = cvar_over_negatives(
        positive.requires_grad_(),
        negative,
        threshold,
        surrogate=get_surrogate("squared_hinge"),
        max_fpr=1.0,
        method=method,
    )
    with pytest.raises(RuntimeError, match="can be differentiated once only"):
        torch.autograd.grad(psi.square().sum(), positive, create_graph=True)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("hinge", (64, 64), "pairs"),
        ("squared_hinge", (1024, 1024), "sorted"),
        ("smooth_ramp", (1024, 1024), "sorted"),
        ("squared_hinge", (1, 10**6), "pairs"),
        ("logistic", (1024, 1024), "pairs"),
        ("logistic", (4096, 4096), "tiles"),
        ("squared", (4096, 4096), "tiles"),
    ],
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_auto_goes_by_the_number_of_pairs(
    name: str, size: tuple[int, int], expected: Method, deterministic: bool
) -> None:
    torch.use_deterministic_algorithms(deterministic)  # on the CPU all are
    try:
        assert pairs._choose("auto", torch.empty(size[0]), torch.empty(size[1]), get_surrogate(name)) == expected
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_fpr": 0.0}, r"max_fpr must be a number in \(0, 1\], got 0.0"),
        ({"max_fpr": 1.5}, r"max_fpr must be a number in \(0, 1\], got 1.5"),
        ({"method": "fast"}, "method must be 'auto', 'pairs', 'sorted' or 'tiles', got 'fast'"),
        ({"method": "sorted", "surrogate": get_surrogate("squared")}, "needs a non-decreasing .*, got 'squared'"),
        ({"method": "sorted", "surrogate": get_surrogate("logistic")}, "piecewise-polynomial .*, got 'logistic'"),
        ({"positive": torch.zeros(2, 1)}, r"positive must have shape \(B,\), got \(2, 1\)"),
        ({"negative": torch.zeros(0)}, r"negative must have shape \(B,\), got \(0,\)"),
        (
            {"negative": torch.zeros(3, dtype=torch.int64)},
            "negative must be a floating point tensor, got a torch.int64",
        ),
        ({"threshold": torch.zeros(3)}, r"threshold must have the shape of positive, \(2,\), got \(3,\)"),
    ],
)
def test_errors(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "positive": torch.zeros(2),
        "negative": torch.zeros(3),
        "threshold": torch.zeros(2),
        "surrogate": get_surrogate("hinge"),
        "max_fpr": 0.5,
    }
    with pytest.raises(ValueError, match=f"cvar_over_negatives: .*{message}"):
        cvar_over_negatives(**(arguments | change))


@pytest.mark.parametrize("warn_only", [None, True, False])
def test_the_question_for_a_fixed_order_can_be_compiled(warn_only):
    if warn_only is not None:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        choice = torch.compile(lambda x: x + pairs._fixed_order(), backend="eager", fullgraph=True)
        assert choice(torch.zeros(())) == (warn_only is not None)
        assert pairs._fixed_order() == (warn_only is False)
    finally:
        torch.use_deterministic_algorithms(False)
