from __future__ import annotations

import pytest
import torch

from moreauc.core.tables import EstimatorTable, UpdateRule, project, theory_gamma, update_row


def make(num_rows=6, dim=None, keep_previous=True, **rule):
    return EstimatorTable(
        num_rows, dim, rule=UpdateRule("test", **{"tau": 0.5, **rule}), keep_previous=keep_previous
    ).double()


def visit(table, index, now):
    index, now = torch.tensor(index), torch.tensor(now, dtype=torch.float64)
    row = table.read(index, fill=now)
    table.write(index, row, table.propose(row, now))


@pytest.mark.parametrize("dim", [None, 1, 2])
def test_previous_is_the_whole_table_of_one_iteration_ago(dim):
    """Against full copies of the table, over random visits: rows visited at once, after a gap, and never."""
    random = torch.Generator().manual_seed(1)
    table, length = make(dim=dim), () if dim is None else (dim,)
    copies = []
    everything = torch.arange(6)
    for _ in range(60):
        index = torch.randperm(6, generator=random)[: int(torch.randint(1, 4, (), generator=random))]
        now = torch.randn(len(index), *length, generator=random, dtype=torch.float64)
        if copies:
            filled = torch.zeros(6, *length, dtype=torch.float64).index_copy(0, index, now)
            visited = table.visited if dim is None else table.visited.unsqueeze(1)
            expected = torch.where(visited, copies[-1], filled)
            assert torch.equal(table.previous(everything, table.read(everything, fill=filled)), expected)
        row = table.read(index, fill=now)
        copy = table.values.clone()
        copy[index] = row  # a row filled now has held that value all along
        copies.append(copy)
        table.write(index, row, table.propose(row, now))
    assert table.step == 60


def test_before_the_first_iteration_nothing_was_different():
    table = EstimatorTable(3, rule=UpdateRule("test", tau=0.5), initial=2.0, keep_previous=True)
    assert table.previous(torch.arange(3), torch.full((3,), 2.0)).tolist() == [2, 2, 2]


def test_previous_goes_back_one_iteration_only():
    table = make(3)
    visit(table, [0], [4.0])
    visit(table, [0], [8.0])
    fill = torch.zeros(1, dtype=torch.float64)
    assert table.read(torch.tensor([0]), fill=fill).item() == 6
    assert table.previous(torch.tensor([0]), table.values[:1]).item() == 4
    visit(table, [1], [1.0])
    assert table.previous(torch.tensor([0]), table.values[:1]).item() == 6


def test_a_table_without_it_says_so():
    with pytest.raises(RuntimeError, match="made without keep_previous"):
        make(keep_previous=False).previous(torch.tensor([0]), torch.zeros(1))


def test_reading_and_proposing_write_nothing():
    table = make()
    visit(table, [1, 2], [1.0, 2.0])
    before = {name: value.clone() for name, value in table.state_dict().items()}
    row = table.read(torch.tensor([0, 1]), fill=torch.ones(2, dtype=torch.float64))
    table.propose(row, row + 1)
    table.previous(torch.tensor([0, 1]), row)
    row += 100  # a copy, not a view
    assert all(torch.equal(value, before[name]) for name, value in table.state_dict().items())


def test_checkpoint_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for values"):
        make(5).load_state_dict(make(6).state_dict())


def test_repr_shows_size_and_rule():
    rule = "rule=UpdateRule(tau=0.5, gamma=0.1, bound=3)"
    text = f"EstimatorTable(num_rows=7, dim=2, {rule}, initial=None, keep_previous=True)"
    assert repr(make(7, 2, gamma=0.1, bound=3.0)) == text


def test_integer_initial_values_become_floats():
    table = EstimatorTable(2, rule=UpdateRule("test", tau=0.5), initial=torch.tensor([1, 2]))
    assert table.values.tolist() == [1.0, 2.0] and table.visited.all()


def test_update_is_the_formula():
    row, now, before = torch.randn(3, 5, 2, dtype=torch.float64)
    expected = 0.7 * row + 0.3 * now + 0.4 * (now - before)
    torch.testing.assert_close(update_row(row, now, before, tau=0.3, gamma=0.4), expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(update_row(row, now, None, tau=0.3, gamma=0.0), 0.7 * row + 0.3 * now)
    with pytest.raises(ValueError, match="before must be given where gamma is not 0"):
        update_row(row, now, None, tau=0.3, gamma=0.4)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_projection_leaves_the_inside_alone_and_keeps_directions(scale):
    row = scale * torch.randn(50, 3, dtype=torch.float64)
    norm = scale * torch.linalg.vector_norm(row / scale, dim=1)
    radius = norm.median().item()
    result = project(row, radius)
    inside = norm <= radius
    torch.testing.assert_close(result[inside], row[inside], rtol=1e-15, atol=0)
    torch.testing.assert_close(torch.linalg.vector_norm(result[~inside] / radius, dim=1), torch.ones(25).double())
    torch.testing.assert_close(result / scale, row / scale * (radius / norm).clamp(max=1).unsqueeze(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0.5), "num_rows must be an integer of at least 1, got 0"),
        ((4, 0, 0.5), "num_visited must be an integer of at least 1, got 0"),
        ((4, 5, 0.5), "num_visited must be at most num_rows = 4, got 5"),
        ((4, 2, 1.0), r"tau must be a number in \(0, 1\), got 1.0"),
    ],
)
def test_theory_gamma_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        theory_gamma(*arguments)


def test_theory_gamma_of_a_full_batch_is_that_of_storm():
    assert theory_gamma(7, 7, 0.3) == pytest.approx(0.7)


def test_a_state_that_does_not_fit_leaves_the_table_incomplete():
    full = EstimatorTable(2, rule=UpdateRule("test", 0.5), initial=1.0)
    table = EstimatorTable(3, rule=UpdateRule("test", 0.5))
    with pytest.raises(RuntimeError, match="size mismatch"):
        table.load_state_dict(full.state_dict())
    index, now = torch.tensor([1]), torch.tensor([7.0])
    assert torch.equal(table.read(index, fill=now), now)


def test_the_rule_of_the_theory_needs_an_average():
    with pytest.raises(ValueError, match=r"gamma='theory' needs tau in \(0, 1\), got 1.0"):
        UpdateRule("test", tau=1.0, gamma="theory")


def test_a_loaded_table_has_the_precision_that_was_saved():
    rule = UpdateRule("test", tau=0.5)
    table, other = make(), EstimatorTable(6, rule=rule, keep_previous=True)
    visit(table, [0, 2], [1 / 3, 2 / 3])
    other.load_state_dict(table.state_dict())
    assert other.values.dtype == torch.float64 and torch.equal(other.values, table.values)
