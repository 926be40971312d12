"""`PreviousIterate` against a model with its old weights put in place by hand, and which forward a call belongs to."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from moreauc import PreviousIterate

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ON_EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)


class Net(nn.Module):
    """Dropout by module and by function, batch norm, and a counter that is a buffer."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(p)
        self.last = nn.Linear(8, 2)
        self.p = p
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return dropout(self.last(x), self.p, self.training)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def random_state():
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def set_random_state(state):
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def evaluate(model, weights, x, state):
    """The model at other weights, by hand: a deep copy, loaded, run from a random state."""
    twin = copy.deepcopy(model)
    twin.load_state_dict({**twin.state_dict(), **weights})
    present = random_state()
    set_random_state(state)
    with torch.no_grad():
        result = twin(x)
    set_random_state(present)
    return result


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@ON_EACH_DEVICE
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in OPTIMIZERS), ("sgd", torch.float16), ("sgd", torch.bfloat16)],
)
def test_equals_the_old_model_with_the_same_masks(name, dtype, device):
    """Also in a second micro batch of a step, which sees the same old weights."""
    model = Net().to(device, dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    previous = PreviousIterate(model, optimizer)
    old = weights_of(model)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(6, 5, device=device, dtype=dtype)
            start = random_state()
            scores, before = model(x), previous(x)
            assert torch.equal(before, evaluate(model, old, x, start))
            assert before.dtype == dtype and not before.requires_grad
            assert torch.equal(scores == 0, before == 0), "dropped entries differ"
            scores.square().mean().backward()
        old = weights_of(model)
        optimizer.step()
        assert not same(old, weights_of(model))


@ON_EACH_DEVICE
def test_training_is_bit_for_bit_what_it_is_without_it(device):
    """Weights, gradients, buffers and the random stream: a call leaves no trace."""
    runs = []
    for use in (False, True):
        torch.manual_seed(3)
        model = Net().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        previous = PreviousIterate(model, optimizer)
        for _ in range(5):
            x = torch.randn(6, 5, device=device)
            scores = model(x)
            if use:
                previous(x)
            optimizer.zero_grad()
            scores.square().sum().backward()
            optimizer.step()
        runs.append({**model.state_dict(), "random": torch.cat([random_state()[0], *random_state()[1]])})
    assert same(*runs)
    assert runs[1]["calls"] == 5


def test_buffers_that_a_forward_rebinds_come_back():
    class Rebinding(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))
            self.register_buffer("mean", torch.zeros(()))
            self.register_buffer("unused", None)

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
            return self.w * (x - self.mean)

    model = Rebinding()
    previous = PreviousIterate(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(3))
    kept = model.mean
    previous(torch.full((3,), 50.0))
    assert model.mean is kept and model.mean == pytest.approx(0.1)


def stepped(model, optimizers, x):
    """Do one step; return a copy of the model before it."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(x).sum().backward()
    old = copy.deepcopy(model)
    for optimizer in optimizers:
        optimizer.step()
    return old


def two_layers():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_what_happens_to_the_model_between_steps():
    """Loaded before the first step, moved by two optimizers, grown, cast."""
    model, x = two_layers(), torch.randn(5, 3)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    previous = PreviousIterate(model, optimizers)
    model.load_state_dict(two_layers().state_dict())
    assert torch.equal(model(x).detach(), previous(x))
    old = stepped(model, optimizers, x)
    assert torch.equal(previous(x), old(x).detach())
    model.append(nn.Linear(2, 2))
    optimizers[0].add_param_group({"params": model[2].parameters()})
    old.append(model[2])
    assert torch.equal(previous(x), old(x).detach())  # the new layer has no past
    old = stepped(model, optimizers, x)
    assert torch.equal(previous(x), old(x).detach())
    model.double()
    torch.testing.assert_close(previous(x.double()), old.double()(x.double()).detach(), rtol=0, atol=0)


FUSED = {
    "not fused": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(
        p, lr=0.1, fused=True
    ),  # torch 2.13 leaves a momentum unset by a first step skipped
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}


@ON_EACH_DEVICE
@pytest.mark.parametrize("unscaled", [True, False])
@pytest.mark.parametrize("name", FUSED)
def test_a_skipped_step_shifts_nothing(name, unscaled, device):
    """Of a fused optimizer the scaler takes the step, and the kernels do nothing."""
    if name == "adagrad" and device == "cuda":
        pytest.skip("torch has it on the CPU only")
    model = Net(p=0.0).to(device)
    optimizer = FUSED[name](model.parameters())
    previous = PreviousIterate(model, optimizer)
    scaler = torch.amp.GradScaler(device, init_scale=2.0)
    x = torch.randn(6, 5, device=device)
    old = None
    for factor in (torch.inf, 1.0, torch.inf, torch.inf, 1.0, torch.inf):
        now = weights_of(model)
        optimizer.zero_grad()
        scaler.scale(model(x).sum() * factor).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved = not same(now, weights_of(model))
        assert moved == (factor == 1.0)
        old = now if moved or old is None else old
        assert torch.equal(previous(x), evaluate(model, old, x, random_state()))
    assert same(previous.state_dict()["weights"], old)


def test_a_step_skipped_by_a_fused_optimizer_keeps_what_has_no_gradient():
    model, x = two_layers(), torch.randn(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    previous, scaler = PreviousIterate(model, optimizer), torch.amp.GradScaler("cpu", init_scale=2.0)
    old = stepped(model, [optimizer], x)
    model[0].requires_grad_(False)
    for factor in (torch.inf, 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(model(x).sum() * factor).backward()
        old = old if factor == torch.inf else copy.deepcopy(model)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(previous(x), old(x).detach())


def test_optimizers_that_skip_steps_unseen_are_refused():
    class Skipping(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            raise AssertionError("the hook has not refused")

    model = nn.Linear(3, 2)
    optimizer = Skipping(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(4, 3)).sum()).backward()
    with (
        pytest.warns(FutureWarning, match="stop passing itself"),
        pytest.raises(ValueError, match=r"optimizer must take found_inf from a GradScaler, .* got Skipping"),
    ):
        scaler.step(optimizer)
    assert not previous.state_dict()["weights"]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_forward_inside_a_closure_sees_the_weights_before_the_last_step(by_name):
    """As in Lightning, whose steps do all of it in a closure: the same as a loop without one, dropout included."""

    def run(inside):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        previous, seen = PreviousIterate(model, optimizer), []

        def closure():
            x = torch.randn(6, 3)
            now = model(x)
            seen.append(now.detach() - previous(x))
            optimizer.zero_grad()
            now.square().mean().backward()

        for _ in range(5):
            if inside:
                optimizer.step(**{"closure": closure}) if by_name else optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        return torch.stack(seen), previous.state_dict()["weights"]

    (expected, old), (found, weights) = run(inside=False), run(inside=True)
    assert torch.equal(found, expected) and not found[0].any() and found[1:].any()
    assert all(torch.equal(weights[name], old[name]) for name in old)


def test_parameters_frozen_later():
    model, x = two_layers(), torch.randn(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    stepped(model, [optimizer], x)
    model[0].requires_grad_(False)
    for _ in range(2):
        old = stepped(model, [optimizer], x)
        assert torch.equal(previous(x), old(x).detach())
    assert set(previous.state_dict()["weights"]) == {"1.weight", "1.bias"}  # what is frozen costs no copy
    model[0].requires_grad_(True)
    old = stepped(model, [optimizer], x)
    assert torch.equal(previous(x), old(x).detach())


def test_tied_weights():
    model, x = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)), torch.randn(5, 4)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    old = stepped(model, [optimizer], x)
    assert torch.equal(previous(x), old(x).detach())
    assert model[2].weight is model[0].weight and list(previous.state_dict()["weights"]) == ["0.weight"]


@ON_EACH_DEVICE
@pytest.mark.parametrize("first", ["model", "previous"])
def test_autocast_does_not_mix_the_weights_up(first, device):
    """Autocast caches the cast weights of a leaf; the cache must not carry w_t into the old model, nor back."""
    model, x = nn.Linear(4, 3).to(device), torch.randn(5, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    previous = PreviousIterate(model, optimizer)
    old = stepped(model, [optimizer], x)
    with torch.autocast(device, dtype=torch.bfloat16):
        before = previous(x) if first == "previous" else None
        scores = model(x)
        before = previous(x) if before is None else before
        model.weight.grad = None
        scores.sum().backward()
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(before, old(x).detach())
    assert not torch.equal(before, scores.detach())
    assert model.weight.grad is not None and model.weight.grad.abs().sum() > 0
    assert torch.is_autocast_cache_enabled()


@ON_EACH_DEVICE
@pytest.mark.parametrize("style", ["wrapper", "in place"])
def test_compiled_modules(style, device):
    torch._dynamo.reset()
    bare = Net().to(device)
    if style == "wrapper":
        model = torch.compile(bare, backend="aot_eager")
    else:
        bare.compile(backend="aot_eager")
        model = bare
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    for _ in range(3):
        x = torch.randn(6, 5, device=device)
        scores = model(x)
        calls = int(bare.calls)
        before = previous(x)
        assert torch.equal(scores == 0, before == 0)
        assert int(bare.calls) == calls
        old = weights_of(bare)
        optimizer.zero_grad()
        scores.square().sum().backward()
        optimizer.step()
    bare.eval()
    x = torch.randn(6, 5, device=device)
    torch.testing.assert_close(previous(x), evaluate(bare, old, x, random_state()))
    assert all(not name.startswith("_orig_mod") for name in previous.state_dict()["weights"])


def test_bad_checkpoints_are_refused():
    model = nn.Linear(3, 2)
    previous = PreviousIterate(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="state must name parameters of the model, got 'head'"):
        previous.load_state_dict({"weights": {"head": torch.zeros(2)}})
    with pytest.raises(ValueError, match=r"state\['bias'\] must have shape \(2,\), got \(3,\)"):
        previous.load_state_dict({"weights": {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}})
    assert previous.state_dict() == {"weights": {}}


def test_copies_of_the_model_are_free_of_it():
    model = Net()
    previous = PreviousIterate(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(4, 5)
    scores = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(x)
    assert torch.equal(scores == 0, previous(x) == 0)
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save its state_dict"):
            duplicate(previous)


def test_removed_hooks_do_nothing():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    x = torch.randn(4, 5)
    previous.remove()
    model(x).sum().backward()
    optimizer.step()
    assert not previous.state_dict()["weights"]
    previous(x)


def test_an_error_in_the_model_restores_everything_and_a_forward_that_failed_is_none():
    model, optimizer, previous = parts()
    x = batch()
    model(x)
    present, random = weights_of(model), torch.get_rng_state()

    def fail():
        raise ValueError("halfway")

    model.after = fail
    with pytest.raises(ValueError, match="halfway"):
        previous(x)
    assert same(present, weights_of(model)) and torch.equal(random, torch.get_rng_state())
    assert torch.is_autocast_cache_enabled() and torch.is_grad_enabled()
    optimizer.step()
    for _ in range(2):
        with pytest.raises(ValueError, match="halfway"):
            model(batch())
    model.after = lambda: None
    now = model(x)
    assert masks(previous(x.clone())) == masks(now)


ELSEWHERE = torch.optim.SGD([torch.zeros(1, requires_grad=True)])


@pytest.mark.parametrize(
    ("model", "optimizer", "name"),
    [
        (torch.relu, ELSEWHERE, "model"),
        *((nn.Linear(1, 1), optimizer, "optimizer") for optimizer in (3, ["adam"], ELSEWHERE)),
    ],
)
def test_wrong_arguments(model, optimizer, name):
    with pytest.raises(ValueError, match=f"PreviousIterate: {name}"):
        PreviousIterate(model, optimizer)


# Which forward a call belongs to: the same dropout masks, or an error.

REFUSED = "call previous\\(x\\) directly after model\\(x\\)"


class Masked(nn.Module):
    """Returns inputs with dropout, so that outputs show masks, and can be interrupted after it."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.weight, self.p = nn.Parameter(torch.ones(40)), p
        self.after = lambda: None

    def forward(self, x, shift=None):
        x = self.weight * dropout(x, self.p, self.training)
        self.after()
        return x if shift is None else x + shift


def parts(**options):
    model = Masked(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    stepped(model, [optimizer], torch.ones(40))
    return model, optimizer, previous


def masks(values):
    return (values != 0).tolist()


def batch():
    return torch.rand(40) + 1


@pytest.mark.parametrize("keyword", [True, False])
def test_calls_are_matched_by_their_input_objects(keyword):
    model, optimizer, previous = parts()
    one, two, shift = batch(), batch(), torch.zeros(40)
    now = [model(x=x, shift=shift) if keyword else model(x, shift) for x in (one, two)]
    before = [previous(shift=shift, x=x) if keyword else previous(x, shift) for x in (two, one)]
    assert [masks(value) for value in before] == [masks(value) for value in reversed(now)]
    assert masks(previous(x=one, shift=shift) if keyword else previous(one, shift)) == masks(now[0])  # once more
    optimizer.step()


@pytest.mark.parametrize("given", [lambda x: x, lambda x: x * 1], ids=["the same object", "made anew"])
def test_two_forwards_that_cannot_be_told_apart_need_their_calls_in_turn(given):
    model, _, previous = parts()
    x = batch()
    for _ in range(3):
        now = model(given(x))
        assert masks(previous(given(x))) == masks(now)
    model(given(x)), model(given(x))
    with pytest.raises(RuntimeError, match=REFUSED):
        previous(given(x))


def test_a_call_without_a_forward_is_refused_and_changes_nothing():
    model, optimizer, previous = parts()
    x = batch()
    model(x)
    optimizer.step()
    weights, state = model.weight.detach().clone(), torch.get_rng_state()
    with pytest.raises(RuntimeError, match=REFUSED):
        previous(x)  # its forward is to come, or was one of the last step
    assert torch.equal(model.weight, weights) and torch.equal(torch.get_rng_state(), state)
    now = model(x)
    assert masks(previous(x)) == masks(now)


def test_a_call_inside_of_a_forward_is_refused():
    model, _, previous = parts()
    x = batch()

    def inside():
        model.after = lambda: None
        previous(x)

    model.after = inside
    with pytest.raises(RuntimeError, match=REFUSED):
        model(x)
    now = model(x)
    assert masks(previous(x)) == masks(now)


def test_the_oldest_of_very_many_forwards_are_forgotten():
    model, _, previous = parts()
    inputs = [batch() for _ in range(1025)]
    now = [masks(model(x)) for x in inputs]
    assert masks(previous(inputs[1])) == now[1]
    with pytest.raises(RuntimeError, match=REFUSED):
        previous(inputs[0])


def test_a_call_that_draws_another_amount_is_refused():
    model, _, previous = parts()
    model.after = lambda: torch.rand(1)
    x = batch()
    model(x)
    model.after = lambda: torch.rand(2)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="drew other random numbers"):
        previous(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("grad", [True, False])
def test_validation_between_a_forward_and_its_call(grad):
    """Also where it forgets `no_grad`."""
    model, optimizer, previous = parts()
    x, y = batch(), batch()
    for _ in range(2):
        now = model(x)
        model.eval()
        with torch.set_grad_enabled(grad):
            model(y), previous(y), model(x)
        model.train()
        assert masks(now) == masks(previous(x))
        optimizer.step()


def test_a_model_that_calls_itself_is_called_once_and_draws_of_other_hooks_are_replayed():
    class Recursive(Masked):
        def forward(self, x, depth=3):
            return super().forward(self(x, depth - 1) if depth else x)

    model = Recursive(p=0.2)
    model.register_forward_pre_hook(lambda module, args: (args[0] * (torch.rand(40) < 0.8), *args[1:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    for _ in range(2):
        x = batch()
        now = model(x)
        assert masks(previous(x.clone())) == masks(now)
        now.sum().backward()
        optimizer.step()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_forward(reentrant):
    """Activation checkpointing of the whole model, with several micro batches in a step."""
    model, optimizer, previous = parts()
    for _ in range(2):
        optimizer.zero_grad()
        for given in (lambda x: x, lambda x: x.clone()):
            x = batch().requires_grad_()
            now = checkpoint(model, given(x), use_reentrant=reentrant)
            assert masks(previous(given(x))) == masks(now)
            now.sum().backward()
            assert torch.equal(x.grad != 0, now != 0), "recomputed with other masks"
        optimizer.step()


def test_recomputation_between_a_forward_and_its_call():
    model, optimizer, previous = parts()
    for _ in range(2):
        inputs = [batch(), batch()]
        now = [checkpoint(model, x, use_reentrant=False) for x in inputs]
        now[0].sum().backward()
        before = [previous(x) for x in inputs]
        now[1].sum().backward()
        assert [masks(value) for value in before] == [masks(value) for value in now]
        optimizer.step()


def test_loading_a_state_forgets_forwards():
    model, _, previous = parts()
    x = batch()
    model(x)
    previous.load_state_dict(previous.state_dict())
    with pytest.raises(RuntimeError, match=REFUSED):
        previous(x)


def test_models_without_random_numbers_are_called_in_any_order():
    model, optimizer, previous = parts(p=0.0)
    x = batch()
    previous(batch())
    model(x), model(batch()), model(x), previous(x), previous(batch()), previous(x)
    optimizer.step()


def in_thread(function):
    """Run something in another thread; raise here what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result(60)


def test_another_thread_may_go_on():
    model, optimizer, previous = parts()
    x = batch()
    model(x)
    in_thread(lambda: (previous(x), optimizer.step()))
    now, before = model(x), previous(x)
    assert masks(before) == masks(now)


@pytest.mark.parametrize("what", ["forward", "validation", "call", "step"])
@pytest.mark.parametrize("during", ["forward", "call"])
def test_another_thread_at_the_same_time_is_refused(during, what):
    model, optimizer, previous = parts()
    model.weight.grad = torch.ones(40)
    x, errors = batch(), []

    def other():
        with torch.set_grad_enabled(what != "validation"):
            {"forward": model, "validation": model, "call": previous}.get(what, lambda x: optimizer.step())(x)

    def meanwhile():
        model.after = lambda: None
        with pytest.raises(RuntimeError, match="one thread at a time") as found:
            in_thread(other)
        errors.append(found.value)

    now = model(x)
    weights = model.weight.detach().clone()
    model.after = meanwhile
    if during == "forward":
        model(batch())
    assert masks(previous(x)) == masks(now)
    assert errors and torch.equal(model.weight, weights)
