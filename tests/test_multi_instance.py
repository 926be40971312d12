from __future__ import annotations

import math
import random

import oracles
import pytest
import torch
from torch import nn

from moreauc import MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.core.pooling import POOLINGS, AttentionPooling, MeanPooling, SmoothedMaxPooling, get_pooling

STEPS = 100
MARGIN, TEMPERATURE = 0.5, 0.7
NAMES = ["mean", "smoothed_max", "attention"]


def dot(x, w):
    return sum(a * b for a, b in zip(x, w, strict=True))


class Data:
    """12 bags of 1 to 6 instances, 5 positive; scores and logits are linear. Some bags come in two steps running."""

    def __init__(self, pooling: str, link: str, seed: int = 7) -> None:
        rng = random.Random(seed)
        self.pooling, self.link = pooling, link
        self.bags = [[[rng.gauss(0, 1) for _ in range(3)] for _ in range(rng.randint(1, 6))] for _ in range(12)]
        chosen = rng.sample(range(12), 5)
        self.labels = [int(i in chosen) for i in range(12)]
        self.positives = [i for i in range(12) if self.labels[i]]
        self.negatives = [i for i in range(12) if not self.labels[i]]
        columns = 6 if pooling == "attention" else 3
        self.w0 = [rng.gauss(0, 0.7) for _ in range(columns)]
        self.batches = []
        for _ in range(STEPS):
            b1, b2 = rng.sample(self.positives, 2), rng.sample(self.negatives, 3)
            b3 = {i: rng.sample(range(len(self.bags[i])), min(2, len(self.bags[i]))) for i in [*b1, *b2]}
            self.batches.append((b1, b2, b3))
        self.rng = rng

    # what the algorithm needs, without logarithmic scales
    def inner(self, i, k, w):
        x = self.bags[i][k]
        if self.pooling == "mean":
            return [dot(x, w)]
        if self.pooling == "smoothed_max":
            return [math.exp(dot(x, w) / TEMPERATURE)]
        weight = math.exp(dot(x, w[3:]))
        return [weight * dot(x, w[:3]), weight]

    def dinner(self, i, k, w):
        x = self.bags[i][k]
        if self.pooling == "mean":
            return [x]
        if self.pooling == "smoothed_max":
            return [[math.exp(dot(x, w) / TEMPERATURE) * a / TEMPERATURE for a in x]]
        weight, score = math.exp(dot(x, w[3:])), dot(x, w[:3])
        return [[weight * a for a in x] + [weight * score * a for a in x], [0.0] * 3 + [weight * a for a in x]]

    def raw(self, v):
        return {"mean": lambda: v[0], "smoothed_max": lambda: TEMPERATURE * math.log(v[0])}.get(
            self.pooling, lambda: v[0] / v[1]
        )()

    def pooled(self, v):
        return 1 / (1 + math.exp(-self.raw(v))) if self.link == "sigmoid" else self.raw(v)

    def dpooled(self, v):
        h = self.pooled(v)
        slope = h * (1 - h) if self.link == "sigmoid" else 1.0
        if self.pooling == "mean":
            return [slope]
        if self.pooling == "smoothed_max":
            return [slope * TEMPERATURE / v[0]]
        return [slope / v[1], -slope * v[0] / v[1] ** 2]

    def scale(self, b3, w):
        """Logits less their mean over the batch."""
        if self.pooling != "attention":
            return 1.0
        logits = [dot(self.bags[i][k], w[3:]) for i in b3 for k in b3[i]]
        return math.exp(-sum(logits) / len(logits))

    def averages(self, v):
        """Rows of the loss in the form of the algorithm."""
        if self.pooling == "mean":
            return [v]
        if self.pooling == "smoothed_max":
            return [math.exp(v)]
        return [v[0] * math.exp(v[1]), math.exp(v[1])]

    def tensors(self, batch):
        """Instances of a batch in a random order of bags and instances."""
        b1, b2, b3 = batch
        order = self.rng.sample([*b1, *b2], len(b1) + len(b2))
        pairs = [(place, k) for place, i in enumerate(order) for k in b3[i]]
        self.rng.shuffle(pairs)
        x = torch.tensor([self.bags[order[place]][k] for place, k in pairs])
        return x, torch.tensor([place for place, _ in pairs]), torch.tensor(order)


class Linear(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))

    def forward(self, x):
        if len(self.weight) == 3:
            return x @ self.weight
        return torch.stack([x @ self.weight[:3], x @ self.weight[3:]], dim=1)


GAMMAS = {
    "none": (0.0, 0.0, 0.0),
    "mixed": (0.3, 0.1, 0.2),
    "only u": (0.0, 0.0, 0.4),
    "only positive bags": (0.5, 0.0, 0.0),
    "theory": ("theory", "theory", "theory"),
}


BOUNDS = {"mean": 0.9, "smoothed_max": 2.5, "attention": 1.5}  # each cuts off some rows


LINKS = [  # each two of link, projection and order of the rows meet
    *(("sigmoid", False, "before"), ("sigmoid", True, "after")),
    *(("identity", True, "before"), ("identity", False, "after")),
    *(("standardized", False, "before"), ("standardized", False, "after")),
]


@pytest.mark.parametrize(
    ("link", "projected", "rows", "gamma"),
    [(*link, gamma) for link in LINKS for gamma in GAMMAS if (link[0], gamma) != ("standardized", "theory")],
)
@pytest.mark.parametrize("pooling", NAMES)
def test_the_loss_is_algorithm_4(float64, pooling, link, gamma, projected, rows):
    ramp = link == "standardized"
    losses = {"loss": lambda z: max(MARGIN + z, 0) ** 2, "dloss": lambda z: 2 * max(MARGIN + z, 0)}
    if ramp:
        losses = {
            "loss": lambda z: oracles.smooth_ramp(z, MARGIN),
            "dloss": lambda z: oracles.smooth_ramp_slope(z, MARGIN),
            "standardized": True,
        }
    bound = BOUNDS[pooling] if projected else None
    data = Data(pooling, link)
    tau = (0.4, 0.3) if gamma == "theory" else (0.9, 0.7)
    lr = {"mean": 0.02, "smoothed_max": 0.002, "attention": 0.003}[pooling] * (0.01 if gamma == "theory" else 1.0)
    options = {"min_tpr": 0.4, "max_fpr": 0.5, "tau": tau, "gamma": GAMMAS[gamma], "threshold_lr": (0.9, 0.08)}
    needs_positive = {"mean": None, "smoothed_max": 0, "attention": 1}[pooling]
    twin = oracles.algorithm_4(
        *(data.inner, data.dinner, data.pooled, data.dpooled, data.w0, data.positives, data.negatives, data.batches),
        lr=lr,
        bound=bound,
        **losses,
        needs_positive=needs_positive,
        rows=rows,
        scale=data.scale if rows == "after" else lambda b3, w: 1.0,
        **options,
    )
    model = Linear(data.w0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    criterion = MultiInstanceTPAUCLoss(
        data.labels,
        pooling=pooling,
        temperature=TEMPERATURE,
        margin=MARGIN,
        surrogate="smooth_ramp" if ramp else "squared_hinge",
        link=link,
        bound=bound,
        update_order=rows,
        **options,
    )
    previous = PreviousIterate(model, optimizer)
    labels, last, seen, gaps, moved, cut = torch.tensor(data.labels), set(), set(), set(), 0, False
    for batch, (w, v, u, s, s_prime, expected, _) in zip(data.batches, twin, strict=True):
        x, bag, index = data.tensors(batch)
        before = previous(x) if criterion.needs_previous else None
        value = criterion(model(x), bag, labels[index], index, before)
        optimizer.zero_grad()
        value.backward()
        moved += bool(model.weight.grad.abs().max() > 0)
        optimizer.step()
        assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert model.weight.tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)
        for i, row in v.items():
            assert data.averages(criterion.v[i].tolist()) == pytest.approx(row, rel=1e-9, abs=1e-9)
            assert criterion.bag_scores[i].item() == pytest.approx(data.raw(row), rel=1e-9, abs=1e-9)
        cut |= projected and any(math.hypot(*row) > bound * (1 - 1e-9) for row in v.values())
        assert criterion.s.tolist() == pytest.approx([s[i] for i in data.positives], rel=1e-9, abs=1e-9)
        assert criterion.s_prime.item() == pytest.approx(s_prime, rel=1e-9, abs=1e-9)
        held = [(k, u[i]) for k, i in enumerate(data.positives) if i in u]
        assert [criterion.u[k].item() for k, _ in held] == pytest.approx([v for _, v in held], rel=1e-9, abs=1e-9)
        now = set(index.tolist())
        gaps |= {"at once" for i in now & last} | {"after a gap" for i in (now & seen) - last}
        last, seen = now, seen | now
    assert gaps == {"at once", "after a gap"}
    assert moved > STEPS / (5 if ramp else 3)  # the ramp is flat where pairs are far apart
    assert cut == projected


@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("pooling", ["smoothed_max", "attention"])
def test_gradients_of_rows_that_lag_are_those_of_the_box(float64, pooling, seed, monkeypatch):
    """Rows that lag by powers of ten, at a temperature of 0.1 or with large logits; the weights stay as they are."""
    monkeypatch.setitem(globals(), "TEMPERATURE", 0.1)
    data = Data(pooling, "identity", seed=seed)
    data.w0 = [*data.w0[:3], *(6.0 * w for w in data.w0[3:])]
    data.batches = [(b1, b2, {i: b3[i][:1] for i in b3}) for b1, b2, b3 in data.batches]  # one instance of each
    options = {"min_tpr": 0.4, "max_fpr": 0.5, "tau": (0.5, 0.5), "gamma": (0.1,) * 3, "threshold_lr": (0.1, 0.01)}
    twin = oracles.algorithm_4(
        *(data.inner, data.dinner, data.pooled, data.dpooled, data.w0, data.positives, data.negatives, data.batches),
        loss=lambda z: max(MARGIN + z, 0) ** 2,
        dloss=lambda z: 2 * max(MARGIN + z, 0),
        lr=0.0,
        needs_positive={"smoothed_max": 0, "attention": 1}[pooling],
        **options,
    )
    model, labels = Linear(data.w0), torch.tensor(data.labels)
    fixed = {"pooling": pooling, "temperature": 0.1, "margin": MARGIN, "link": "identity"}
    criterion = MultiInstanceTPAUCLoss(data.labels, **fixed, **options)
    largest = 0.0
    for batch, (*_, value, gradient) in zip(data.batches, twin, strict=True):
        x, bag, index = data.tensors(batch)
        model.zero_grad()
        loss = criterion(model(x), bag, labels[index], index, model(x).detach())
        loss.backward()
        assert loss.item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert model.weight.grad.tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-9 * max(map(abs, gradient)))
        largest = max(largest, *map(abs, gradient))
    assert largest > 1e4


def test_weights_of_instances_are_cut_where_float32_ends():
    """A row that lags by more than e^60 counts for that much: gradients are finite, and the same in float64."""
    rule, bag = SmoothedMaxPooling(1.0), torch.zeros(1, dtype=torch.long)
    for instance, expected in [(50.0, 50.0), (60.0, 60.0), (70.0, 60.0), (1e4, 60.0)]:
        got = rule.vjp(torch.ones(1), torch.zeros(1, 1), torch.tensor([instance]), bag)
        assert got.log().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("pooling", ["smoothed_max", "attention"])
def test_a_correction_that_would_leave_too_little_is_left_out(float64, pooling):
    rule = get_pooling("test", pooling, 1.0)
    row, now, before = (torch.tensor(values) for values in ([[0.4, 0.0]], [[1.0, -1.0]], [[2.0, 3.0]]))
    if pooling == "smoothed_max":
        row, now, before = row[:, 1:], now[:, 1:], before[:, 1:]
    plain = rule.update(row, now, None, tau=0.9)
    average = 0.1 * math.exp(0.0) + 0.9 * math.exp(-1.0)
    assert plain[0, -1].exp().item() == pytest.approx(average)
    change = math.exp(-1.0) - math.exp(3.0)
    edge = -0.9 * average / change  # leaves just a tenth
    torch.testing.assert_close(rule.update(row, now, before, tau=0.9, gamma=1.001 * edge), plain)
    torch.testing.assert_close(rule.update(row, now, before, tau=0.9, gamma=1e9), plain)
    kept = rule.update(row, now, before, tau=0.9, gamma=0.999 * edge)
    assert kept[0, -1].exp().item() == pytest.approx(average + 0.999 * edge * change, rel=1e-12)
    if pooling == "attention":
        moment = 0.1 * 0.4 + 0.9 * math.exp(-1.0)
        assert plain[0, 0].item() == pytest.approx(moment / average, rel=1e-12)
        moment += 0.999 * edge * (math.exp(-1.0) - 2.0 * math.exp(3.0))
        assert kept[0, 0].item() == pytest.approx(moment / kept[0, 1].exp().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pooling", ["smoothed_max", "attention"])
def test_a_correction_whose_exponential_overflows_is_left_out(dtype, pooling):
    rule = get_pooling("test", pooling, 1.0)
    row, now = torch.tensor([[0.4, 0.0], [0.2, 1.0]], dtype=dtype), torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=dtype)
    before = torch.tensor([[2.0, 1000.0], [0.0, 1000.0]], dtype=dtype)
    if pooling == "smoothed_max":
        row, now, before = row[:, 1:], now[:, 1:], before[:, 1:]
    for tau in (0.9, 1.0):
        plain = rule.update(row, now, None, tau=tau)
        for gamma in (0.3, 0.0, torch.tensor([[0.0], [0.3]], dtype=dtype)):
            torch.testing.assert_close(rule.update(row, now, before, tau=tau, gamma=gamma), plain, rtol=0.0, atol=0.0)


LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


def extreme(pooling, number=12, seed=0):
    """Instances of six bags, scores and logits of up to 1000 in size; exact in bfloat16."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.0, 125.0, 250.0, 500.0, 1000.0, -125.0, -250.0, -500.0, -1000.0])
    values = sizes[torch.randint(0, 9, (number, 2), generator=random)]
    values[0], values[1] = torch.tensor([1000.0, 1000.0]), torch.tensor([-1000.0, -1000.0])
    bag = torch.arange(number) % 6
    return (values if pooling == "attention" else values[:, 0]), bag


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
@pytest.mark.parametrize("gamma", [0.0, 0.1, "theory"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling", NAMES)
def test_instance_scores_of_a_thousand(pooling, dtype, gamma, link):
    tau = 0.5 if gamma == "theory" else 0.9
    options = {"min_tpr": 0.4, "max_fpr": 0.5, "pooling": pooling, "gamma": gamma, "tau": tau, "link": link}
    results = {}
    for kind in (dtype, torch.float64):
        criterion = MultiInstanceTPAUCLoss(LABELS, **options)
        steps = []
        for step in range(4):  # the same instances, then others: rows that are near, and rows that are far behind
            values, bag = extreme(pooling, seed=step // 2)
            before, _ = extreme(pooling, seed=(step + 1) // 2)
            instances = values.to(kind).requires_grad_()
            loss = criterion(instances, bag, LABELS, torch.arange(6), before.to(kind) if gamma else None)
            loss.backward()
            assert loss.isfinite() and instances.grad.isfinite().all()
            assert instances.grad.dtype == kind
            steps.append((loss.double(), instances.grad.double(), criterion.v.double().clone()))
        results[kind] = steps
    relative = {torch.float32: 1e-5, torch.bfloat16: 8e-3}[dtype]  # gradients come back in the type of the instances
    for (loss, grad, v), (exact, exact_grad, exact_v) in zip(results[dtype], results[torch.float64], strict=True):
        torch.testing.assert_close(loss, exact, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(grad, exact_grad, rtol=relative, atol=1e-4)  # 1000 in float32 is exact to 6e-5
        torch.testing.assert_close(v, exact_v, rtol=1e-6, atol=1e-6)


def batch(pooling="mean"):
    random = torch.Generator().manual_seed(3)
    columns = (2,) if pooling == "attention" else ()
    return {
        "instances": torch.randn((9, *columns), generator=random),
        "bag": torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 2]),
        "labels": torch.tensor([1, 0, 0, 1]),
        "index": torch.tensor([3, 0, 4, 5]),
    }


def make(pooling="mean", **options):
    return MultiInstanceTPAUCLoss(LABELS, **{"min_tpr": 0.4, "max_fpr": 0.5, "pooling": pooling, **options})


@pytest.mark.parametrize("pooling", NAMES)
def test_evaluation_is_the_objective_of_the_pooled_scores(float64, pooling):
    """Against the loss of rows, which is given the pooled scores."""
    data = {name: value.double() if value.is_floating_point() else value for name, value in batch(pooling).items()}
    criterion, rows = make(pooling, margin=1.0).eval(), TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.5).eval()
    instances = data["instances"].requires_grad_()
    value = criterion(**data)
    value.backward()
    got, instances.grad = instances.grad, None
    bag = data["bag"]
    scores = []
    for place in range(4):
        part = instances[bag == place]
        if pooling == "mean":
            scores.append(part.mean())
        elif pooling == "smoothed_max":
            scores.append(0.1 * torch.log((part / 0.1).exp().mean()))
        else:
            scores.append((part[:, 1].exp() * part[:, 0]).sum() / part[:, 1].exp().sum())
    expected = rows(torch.stack(scores), data["labels"], data["index"])
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(got, instances.grad)
    assert not criterion.table_v.visited.any()


@pytest.mark.parametrize("pooling", NAMES)
def test_bags_cut_in_two_and_averaged_are_the_whole(float64, pooling):
    rule = get_pooling("test", pooling, 0.3)
    random = torch.Generator().manual_seed(0)
    shape = (10, 2) if pooling == "attention" else (10,)
    instances = torch.randn(shape, generator=random, dtype=torch.float64)
    zero = torch.zeros(10, dtype=torch.long)
    whole = rule.observe(instances, zero, 1)
    parts = rule.observe(instances[:3], zero[:3], 1), rule.observe(instances[3:], zero[3:], 1)
    torch.testing.assert_close(rule.update(*parts, None, tau=0.7), whole)
    torch.testing.assert_close(rule.update(*parts, None, tau=1.0), parts[1])


@pytest.mark.parametrize("pooling", NAMES)
def test_pull_at_the_observed_row_is_the_gradient_of_the_score(float64, pooling):
    rule = get_pooling("test", pooling, 0.3)
    random = torch.Generator().manual_seed(1)
    shape = (10, 2) if pooling == "attention" else (10,)
    instances = torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()
    bag, weight = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 2]), torch.tensor([0.3, -1.0, 2.0])
    (expected,) = torch.autograd.grad((rule(instances, bag, 3) * weight).sum(), instances)
    got = rule.vjp(weight, rule.observe(instances, bag, 3).detach(), instances.detach(), bag)
    torch.testing.assert_close(got, expected)


def test_a_fourth_pooling_is_one_more_class():
    class Doubled(MeanPooling):
        name = "doubled"

        def score(self, row):
            return 2.0 * super().score(row)

        def vjp(self, weight, row, instances, bag):
            return 2.0 * super().vjp(weight, row, instances, bag)

    data = batch()
    data["instances"].requires_grad_()
    make(Doubled())(**data).backward()
    twice = batch()
    twice["instances"] = (2.0 * twice["instances"]).requires_grad_()
    make("mean")(**twice).backward()
    torch.testing.assert_close(data["instances"].grad, 2.0 * twice["instances"].grad)


def test_poolings_by_name():
    assert list(POOLINGS) == NAMES
    assert repr(get_pooling("test", "smoothed_max", 0.2)) == "SmoothedMaxPooling(temperature=0.2)"
    assert isinstance(get_pooling("test", "attention"), AttentionPooling)
    with pytest.raises(ValueError, match="temperature"):
        SmoothedMaxPooling(-1.0)
