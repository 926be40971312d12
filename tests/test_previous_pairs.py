"""Which forward a call of `PreviousIterate` belongs to: the same dropout masks, or an error."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from moreauc import PreviousIterate
from moreauc.optim import previous as module


class Masked(nn.Module):
    """Returns inputs with dropout, so that outputs show masks, and can be interrupted before and after it."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.weight, self.p = nn.Parameter(torch.ones(40)), p
        self.before = self.after = lambda: None

    def forward(self, x, shift=None):
        self.before()
        x = self.weight * nn.functional.dropout(x, self.p, self.training)
        self.after()
        return x if shift is None else x + shift


def parts(**options):
    model = Masked(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    step(model, optimizer, torch.ones(40))
    return model, optimizer, previous


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def masks(values):
    return (values != 0).tolist()


def batch():
    return torch.rand(40) + 1


def test_equal_inputs_twice_are_paired_in_order():
    """As in R-Drop."""
    model, optimizer, previous = parts()
    x = batch()
    now = [model(x), model(x)]
    before = [previous(x), previous(x)]
    assert masks(now[0]) != masks(now[1])
    assert [masks(value) for value in before] == [masks(value) for value in now]
    assert torch.equal(previous(x), before[1])  # once more
    optimizer.step()


@pytest.mark.parametrize("given", [lambda x: x, lambda x: x.clone()], ids=["same", "copies"])
def test_calls_that_come_first_are_paired_in_order(given):
    model, optimizer, previous = parts()
    one, two = batch(), batch()
    before = [previous(given(one)), previous(given(two))]
    assert previous.unpaired == 2
    now = [model(given(one)), model(given(two))]
    assert previous.unpaired == 0
    assert [masks(value) for value in before] == [masks(value) for value in now]
    optimizer.step()


@pytest.mark.parametrize("number", [17, 200])
@pytest.mark.parametrize("given", [lambda x: x, lambda x: x.clone()], ids=["same", "copies"])
def test_many_forwards_may_wait_for_their_calls(number, given):
    model, optimizer, previous = parts()
    inputs = [batch() for _ in range(number)]
    now = [masks(model(given(x))) for x in inputs]
    assert [masks(previous(given(x))) for x in inputs] == now
    optimizer.step()


def test_too_many_forwards_without_a_call_are_refused():
    model, optimizer, previous = parts()
    inputs = [batch() for _ in range(1025)]
    for x in inputs:
        model(x)
    with pytest.raises(RuntimeError, match="at most 1024 forwards may wait for their calls"):
        previous(inputs[-1])
    optimizer.step()
    now = model(inputs[0])
    assert masks(previous(inputs[0])) == masks(now)


def test_forwards_that_had_their_call_are_no_matter():
    model, optimizer, previous = parts()
    for _ in range(1100):
        x = batch()
        now = model(x)
        assert masks(previous(x)) == masks(now)
    optimizer.step()


def test_fewer_calls_than_forwards_of_the_same_inputs_are_refused_before_the_step():
    model, optimizer, previous = parts()
    x = batch()
    model(x), model(x)
    previous(x)
    weights = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="which one it belongs to is not known"):
        optimizer.step()
    assert torch.equal(model.weight, weights)
    step(model, optimizer, x)  # goes on


def test_a_call_right_after_its_forward_is_no_guess():
    model, optimizer, previous = parts()
    x = batch()
    one = model(x)
    before = previous(x)
    model(x)
    assert masks(before) == masks(one)
    optimizer.step()


def test_inputs_are_not_told_by_the_place_of_ones_that_are_gone():
    model, optimizer, previous = parts()
    one, two = batch(), batch()
    now = [model(one * 1), model(two * 1)]  # the second takes the place of the first
    before = [previous(one * 1), previous(two * 1)]
    assert [masks(value) for value in before] == [masks(value) for value in now]
    optimizer.step()


def test_a_call_that_was_taken_for_another_forwards_is_refused():
    model, _, previous = parts()
    x, y = batch(), batch()
    model(y)
    previous(x)
    with pytest.raises(RuntimeError, match="had its call before, which was taken for that of another forward"):
        model(x)


def test_a_call_without_a_forward_is_refused_before_the_step():
    model, optimizer, previous = parts()
    model.weight.grad = torch.ones(40)
    previous(batch())
    weights = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="without a forward of the model"):
        optimizer.step()
    assert torch.equal(model.weight, weights)
    optimizer.step()


def test_random_numbers_between_a_call_and_its_forward_are_refused():
    model, _, previous = parts()
    x = batch()
    previous(x)
    torch.rand(1)
    with pytest.raises(RuntimeError, match="drew other random numbers than its call"):
        model(x)


def test_a_call_that_draws_another_amount_is_refused():
    model, _, previous = parts()
    model.after = lambda: torch.rand(1)
    x = batch()
    model(x)
    model.after = lambda: torch.rand(2)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="drew other random numbers than the forward"):
        previous(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("keyword", [True, False])
def test_keyword_arguments_and_nested_inputs(keyword):
    model, optimizer, previous = parts()
    one, two, shift = batch(), batch(), torch.zeros(40)
    now = [model(x=x, shift=shift) if keyword else model(x, shift) for x in (one, two)]
    before = [previous(shift=shift, x=x) if keyword else previous(x, shift) for x in (two, one)]
    assert [masks(value) for value in before] == [masks(value) for value in reversed(now)]
    optimizer.step()


@pytest.mark.parametrize("grad", [True, False])
def test_validation_in_between(grad):
    """Also where it forgets `no_grad`, and before a call that comes first."""
    model, optimizer, previous = parts()
    x, y = batch(), batch()
    for _ in range(2):
        model.eval()
        with torch.set_grad_enabled(grad):
            model(y)
        model.train()
        before = previous(x)
        model.eval()
        with torch.set_grad_enabled(grad):
            model(y), previous(y)
        model.train()
        assert masks(model(x)) == masks(before)
        model.eval()
        with torch.set_grad_enabled(grad):
            model(x), model(x), previous(x)
        model.train()
        optimizer.step()


def test_a_forward_that_failed_is_none():
    model, optimizer, previous = parts()

    def fail():
        raise ValueError("halfway")

    model.after = fail
    for _ in range(2):
        with pytest.raises(ValueError, match="halfway"):
            model(batch())
    model.after = lambda: None
    x = batch()
    now = model(x)
    assert masks(previous(x.clone())) == masks(now)
    optimizer.step()


def test_draws_of_other_hooks_are_replayed():
    model = Masked(p=0.5)
    model.register_forward_pre_hook(lambda module, args: (args[0] * (torch.rand(40) < 0.5),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    x = batch()
    assert masks(model(x)) == masks(previous(x))


def test_a_model_that_calls_itself_is_called_once():
    class Recursive(Masked):
        def forward(self, x, depth=3):
            return super().forward(self(x, depth - 1) if depth else x)

    model = Recursive(p=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    for _ in range(2):
        x = batch()
        now = model(x)
        assert masks(previous(x.clone())) == masks(now)
        now.sum().backward()
        optimizer.step()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_recomputation_is_no_forward(reentrant, first):
    """Activation checkpointing of the whole model, with several micro batches in a step."""
    model, optimizer, previous = parts()
    for _ in range(2):
        optimizer.zero_grad()
        for given in (lambda x: x, lambda x: x.clone()):
            x = batch().requires_grad_()
            if first:
                before = previous(given(x))
            now = checkpoint(model, given(x), use_reentrant=reentrant)
            if not first:
                before = previous(given(x))
            assert masks(before) == masks(now)
            now.sum().backward()
            assert torch.equal(x.grad != 0, now != 0), "recomputed with other masks"
        optimizer.step()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_of_parts(reentrant):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Masked()

        def forward(self, x):
            return checkpoint(self.part, x, use_reentrant=reentrant)

    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for watched in (model, model.part):
        previous = PreviousIterate(watched, optimizer)
        for _ in range(3):
            x = batch().requires_grad_()
            now = model(x)
            with torch.no_grad():
                before = previous(x) if watched is model.part else None
            if watched is model.part:
                assert masks(before) == masks(now)
            now.sum().backward()
            optimizer.step()
        previous.remove()


def test_closures_and_accumulation_with_checkpointing():
    model = Masked()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, lr=0.01)
    previous = PreviousIterate(model, optimizer)
    x, seen = batch(), []

    def closure():
        optimizer.zero_grad()
        for _ in range(2):
            now = checkpoint(model, x, use_reentrant=False)
            seen.append(masks(previous(x)) == masks(now))
            now.square().sum().backward()
        return now.square().sum()

    for _ in range(2):
        optimizer.step(closure)
    assert len(seen) > 4 and all(seen)


def test_forwards_of_a_step_are_not_kept_for_later_calls():
    model = Masked()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, lr=0.01)
    previous = PreviousIterate(model, optimizer)
    x = batch()

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    old = model.weight.detach().clone()
    optimizer.step(closure)
    assert torch.equal(previous.state_dict()["weights"]["weight"], old) and not torch.equal(model.weight, old)
    now = model(x)
    assert masks(previous(x)) == masks(now)


def test_accumulation_without_exchange(tmp_path):
    """Micro batches of `DistributedDataParallel` in `no_sync`, recomputed."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Masked())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        previous = PreviousIterate(model, optimizer)
        for _ in range(2):
            inputs = [batch(), batch()]
            with model.no_sync():
                now = [checkpoint(model, x, use_reentrant=False) for x in inputs]
                now[0].sum().backward()
                before = [previous(x) for x in inputs]
                now[1].sum().backward()
            assert [masks(value) for value in before] == [masks(value) for value in now]
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()


def test_loading_a_state_forgets_forwards():
    model, optimizer, previous = parts()
    x, y = batch(), batch()
    previous(y)
    assert previous.unpaired == 1
    previous.load_state_dict(previous.state_dict())
    assert previous.unpaired == 0
    model(y)
    previous.load_state_dict(previous.state_dict())
    before = previous(x)
    assert masks(model(x)) == masks(before)
    optimizer.step()


def test_models_without_random_numbers_need_no_pairs_and_leave_generators_alone():
    model, optimizer, previous = parts(p=0.0)
    times, x = module._times_set[0], batch()
    for _ in range(40):
        model(batch())
    model(batch()), model(x), previous(x), previous(batch()), previous(x)
    assert module._times_set[0] == times and previous.unpaired == 0
    optimizer.step()


def in_thread(function):
    """Run something in another thread; raise here what it raises."""
    errors = []

    def run():
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_another_thread_may_go_on():
    model, optimizer, previous = parts()
    x = batch()
    now = model(x)
    in_thread(lambda: (previous(x), optimizer.step()))
    now, before = model(x), previous(x)
    assert masks(before) == masks(now)


@pytest.mark.parametrize("what", ["forward", "validation", "call", "step"])
def test_another_thread_during_a_call_is_refused(what):
    model, optimizer, previous = parts()
    model.weight.grad = torch.ones(40)
    x, errors = batch(), []

    def other():
        with torch.set_grad_enabled(what != "validation"):
            {"forward": model, "validation": model, "call": previous}.get(what, lambda x: optimizer.step())(x)

    def meanwhile():
        model.after = lambda: None
        try:
            in_thread(other)
        except RuntimeError as error:
            errors.append(error)

    now = model(x)
    weights = model.weight.detach().clone()
    model.after = meanwhile
    before = previous(x)
    assert "another thread" in str(errors[0])
    assert masks(before) == masks(now)
    assert torch.equal(model.weight, weights)


@pytest.mark.parametrize("grad", [True, False])
def test_a_call_of_another_thread_during_a_forward_is_refused(grad):
    model, _, previous = parts(p=0.0)
    x = batch()

    def meanwhile():
        model.before = lambda: None
        in_thread(lambda: previous(x))

    model.before = meanwhile
    with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match="another thread"):
        model(x)
    model(x)


def test_random_numbers_of_another_thread_are_refused():
    """Generators are the process's: two models in two threads mix their masks."""
    (model, _, previous), (other, _, others) = parts(), parts()
    x, y = batch(), batch()
    model.before = lambda: in_thread(lambda: other(y))
    model(x)
    model.before = lambda: None
    with pytest.raises(RuntimeError, match="drew other random numbers than the forward"):
        previous(x)
    others(y)


def test_numbers_that_only_another_thread_draws_are_no_matter():
    """A model without dropout, whose calls and forwards meet the random numbers of others."""
    (model, optimizer, previous), (other, _, others) = parts(p=0.0), parts()
    x, y = batch(), batch()

    def interrupt(function):
        def once():
            model.before = lambda: None
            in_thread(function)

        model.before = once

    interrupt(lambda: (other(y), others(y)))
    now = model(x)
    interrupt(lambda: torch.rand(3))
    assert masks(previous(x)) == masks(now)
    optimizer.step()


def test_generators_that_another_thread_sets_during_a_call_are_found():
    """As a call of its own does: the numbers drawn seem to be none, or others."""
    model, optimizer, previous = parts()
    x, start = batch(), torch.get_rng_state()
    now = model(x)

    def once():
        model.after = lambda: None
        in_thread(lambda: module._set_state({torch.device("cpu"): start}))

    model.after = once
    assert masks(previous(x)) == masks(now)  # evaluated again
    model.after = lambda: in_thread(lambda: module._set_state({torch.device("cpu"): start}))
    model(x)
    model.after = lambda: None
    with pytest.raises(RuntimeError, match="another thread trains a model that draws random numbers"):
        previous(x)
    optimizer.step()


def test_two_threads_that_draw_in_one_iteration_are_refused():
    (model, optimizer, previous), (other, others_optimizer, others) = parts(), parts()
    x, y, go, done = batch(), batch(), threading.Event(), threading.Event()
    errors = []

    def train():
        other(y)
        done.set()
        go.wait(60)
        try:
            others(y)
        except RuntimeError as error:
            errors.append(error)
        others_optimizer.step()

    thread = threading.Thread(target=train)
    thread.start()
    assert done.wait(60)
    model(x)
    with pytest.raises(RuntimeError, match="another thread trains a model that draws random numbers"):
        previous(x)
    go.set()
    thread.join(60)
    assert "another thread trains a model that draws random numbers" in str(errors[0])
    optimizer.step()
    now = model(x)
    assert masks(previous(x)) == masks(now)
