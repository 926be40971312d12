from __future__ import annotations

import pytest
import torch
from torch import nn

from moreauc import FCCOLoss, TCCOLoss


def relu(u, index):
    return torch.relu(u)


def test_eval_is_the_objective_at_the_values_given_with_its_gradient():
    criterion = FCCOLoss(4, relu, tau=0.5, initial=-3.0).eval()
    inner = torch.tensor([1.0, -2.0], requires_grad=True)
    loss = criterion(inner, torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == 0.5 and inner.grad.tolist() == [0.5, 0]


def test_zero_rows_survive_the_projection():
    criterion = FCCOLoss(1, relu, tau=0.5, bound=1e-3)
    criterion(torch.zeros(1), torch.zeros(1, dtype=torch.long))
    assert criterion.u.tolist() == [0]


def test_index_may_be_a_list_and_live_on_the_cpu():
    criterion = FCCOLoss(3, relu, tau=0.5)
    assert criterion(torch.tensor([1.0]), [2]).item() == 1


def test_without_gradient_the_table_still_moves():
    criterion = FCCOLoss(3, relu, tau=0.5)
    with torch.no_grad():
        criterion(torch.ones(3), torch.arange(3))
    assert criterion.u.tolist() == [1, 1, 1]


def test_outer_sees_rows_in_the_shape_of_inner():
    shapes = []

    def outer(u, index):
        shapes.append(tuple(u.shape))
        return u.reshape(-1)

    criterion = FCCOLoss(3, outer, tau=0.5)
    criterion(torch.ones(2), torch.arange(2))
    criterion(torch.ones(2, 1), torch.arange(2))
    assert shapes == [(2,), (2, 1)]


BAD_OUTER = {
    "wrong shape": (lambda u, i: u.sum(), r"what outer returns must have shape \(2,\) or \(2, 1\), got \(\)"),
    "pair matrix": (lambda u, i: u[:, None] - u, r"what outer returns must have shape .* got \(2, 2\)"),
    "constant": (
        lambda u, i: torch.ones(u.shape),
        "outer must depend on its first argument .* constant without gradient",
    ),
    "detached": (lambda u, i: u.detach(), "outer must depend .* constant without gradient"),
    "nan": (lambda u, i: torch.log(u), "what outer returns must be finite, got nan"),
    "not a tensor": (lambda u, i: 1.0, "outer must return a floating point tensor, got a float"),
    "integers": (lambda u, i: u.long(), "outer must return a floating point tensor, got a torch.int64 tensor"),
}


@pytest.mark.parametrize("bad", BAD_OUTER)
def test_a_bad_outer_is_named_and_changes_nothing(bad):
    outer, message = BAD_OUTER[bad]
    criterion = FCCOLoss(4, outer, tau=0.5)
    with pytest.raises(ValueError, match=f"FCCOLoss: {message}"):
        criterion(torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([0, 3]))
    assert not criterion.table_u.visited.any()


@pytest.mark.parametrize("bad", BAD_OUTER)
def test_a_bad_middle_is_named_and_changes_nothing(bad):
    middle, message = BAD_OUTER[bad]
    message = message.replace("outer", "middle").replace(r"(2,\) or \(2, 1\)", r"(1, 2, 1\) or \(1, 2\)")
    message = message.replace(r"got \(2, 2\)", r"got \(1, 1, 2\)")
    criterion = TCCOLoss(4, 5, relu, middle, tau1=0.5, tau2=0.5)
    with pytest.raises(ValueError, match=f"TCCOLoss: {message}"):
        criterion(torch.tensor([[-1.0, -2.0]], requires_grad=True), torch.tensor([3]), torch.tensor([0, 1]))
    assert not criterion.table_u.visited.any() and not criterion.table_v.visited.any()


def test_a_correction_that_overflows_is_named_and_changes_nothing():
    criterion = FCCOLoss(2, relu, tau=0.5, gamma=1e30)
    with pytest.raises(ValueError, match="the updated table row must be finite, got inf"):
        criterion(torch.tensor([1e30]), torch.tensor([0]), torch.tensor([-1e30]))
    assert not criterion.table_u.visited.any()


TCCO = {"num_outer": 3, "num_inner": 2, "outer": relu, "middle": relu, "tau1": 0.5, "tau2": 0.5}


def test_any_optimizer_moves_the_thresholds_of_a_learned_outer():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.s = nn.Parameter(torch.zeros(()))

        def forward(self, u, index):
            return self.s + torch.relu(u - self.s) / 0.25

    losses = torch.arange(8.0)
    criterion = FCCOLoss(8, Outer(), tau=0.5)
    optimizer = torch.optim.Adam(criterion.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        loss = criterion(losses, torch.arange(8))
        loss.backward()
        optimizer.step()
    assert 5 - 0.1 <= criterion.outer.s.item() <= 6 + 0.1  # the upper quarter is {6, 7}
    assert loss.item() == pytest.approx(6.5, abs=0.2)


def test_each_outer_item_may_have_inner_items_of_its_own():
    """Rows and loss are those of the shared call where the items agree, and go to the right pairs where they do not."""
    shared, own = (TCCOLoss(5, 6, relu, relu, tau1=0.5, tau2=0.5, gamma1=0.2, gamma2=0.3) for _ in range(2))
    for step in range(5):
        random = torch.Generator().manual_seed(step)
        h, before = torch.randn(2, 3, 2, generator=random)
        i, j = torch.randperm(5, generator=random)[:3], torch.randperm(6, generator=random)[:2]
        assert torch.equal(shared(h, i, j, before), own(h, i, j.expand(3, 2), before))
    assert torch.equal(shared.u, own.u) and torch.equal(shared.v, own.v)
    criterion = TCCOLoss(3, 4, relu, relu, tau1=0.5, tau2=0.5)
    criterion(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([2, 0]), torch.tensor([[0, 3], [3, 1]]))
    assert criterion.v.tolist() == [[0, 4, 0, 3], [0, 0, 0, 0], [1, 0, 0, 2]]


@pytest.mark.parametrize(
    ("inner_index", "message"),
    [
        ([[0, 0], [1, 2]], "inner_index of one outer item must not repeat"),
        ([[0, 4], [1, 2]], r"inner_index must lie in \[0, 4\), got 4"),
        ([[0, 1]], r"inner_index must have shape \(2,\) or \(2, 2\), got \(1, 2\)"),
    ],
)
def test_wrong_inner_items_of_their_own(inner_index, message):
    criterion = TCCOLoss(3, 4, relu, relu, tau1=0.5, tau2=0.5)
    with pytest.raises(ValueError, match=message):
        criterion(torch.ones(2, 2), torch.tensor([2, 0]), torch.tensor(inner_index))
    assert not criterion.table_v.visited.any()


def test_values_whose_sum_overflows_are_finite_all_the_same():
    criterion = FCCOLoss(4, relu, tau=0.5)
    criterion(torch.full((4,), 3e38), torch.arange(4))
    assert torch.equal(criterion.u, torch.full((4,), 3e38))
