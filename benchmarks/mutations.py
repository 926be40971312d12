"""Small changes of source code that a good test should detect.

A change is named by the qualified name of its function, the text of its statement as `ast.unparse` writes it, and what
is changed; so it is found again after code has been moved or formatted.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_TWINS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"), ("any", "all")]
_TWINS += [("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("sum", "mean"), ("lt", "le")]
TWINS = {one: other for pair in _TWINS for one, other in (pair, pair[::-1])}
UNTESTED = {"__repr__", "extra_repr", "__dir__"}
UNTESTED_ARGUMENTS = {"stacklevel", "exist_ok", "parents", "strict", "non_blocking", "copy"}
Change = tuple[str, Callable[[], None]]


@dataclass(frozen=True)
class Key:
    """What names a mutant.

    Attributes:
        function: qualified name in its module; "<module>" for a statement outside functions.
        statement: the statement as `ast.unparse` writes it; of a compound one its first line.
        change: what is done to it.
        occurrence: number among those with the same three, from 1.
    """

    function: str
    statement: str
    change: str
    occurrence: int = 1


@dataclass(frozen=True)
class Mutation:
    """A key, and what changes the tree that it was found in."""

    key: Key
    apply: Callable[[], None]


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Yield the possible changes of a module, in the order of its source; to be applied one at most."""
    seen: Counter[Key] = Counter()
    for function, body, place in _statements(tree.body, ()):
        statement = body[place]
        labels: Counter[str] = Counter()
        for label, apply in _changes(body, place):
            labels[label] += 1
            change = label if labels[label] == 1 else f"{label} ({labels[label]})"
            key = Key(function or "<module>", header(statement), change)
            seen[key] += 1
            yield Mutation(Key(key.function, key.statement, key.change, seen[key]), apply)


def header(statement: ast.stmt) -> str:
    """Return the text of a statement, of a compound one without what it contains."""
    return ast.unparse(statement).splitlines()[0] if hasattr(statement, "body") else ast.unparse(statement)


def _statements(body: list[ast.stmt], names: tuple[str, ...]) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Yield (function, body, place in it) of the statements that may be changed."""
    for place, statement in enumerate(body):
        if isinstance(statement, FunctionNode | ast.ClassDef):
            if statement.name not in UNTESTED:
                yield from _statements(statement.body, (*names, statement.name))
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            yield ".".join(names), body, place
        for inner in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, inner, []), names)
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _statements(part.body, names)


def _changes(body: list[ast.stmt], place: int) -> Iterator[Change]:
    statement = body[place]
    if _removable(statement):
        yield "removed", lambda: body.__setitem__(place, ast.Pass())
    if isinstance(statement, ast.Raise | ast.Assert):
        return
    if isinstance(statement, ast.If | ast.While) and _negation_is_new(statement.test):
        test = statement.test
        yield "negated", lambda: setattr(statement, "test", ast.UnaryOp(ast.Not(), test))
    if isinstance(statement, ast.AugAssign):
        yield from _operator(statement)
    for node in _expressions(_own_expressions(statement)):
        yield from _expression_changes(node)


def _negation_is_new(test: ast.expr) -> bool:
    """Return whether the negation of a condition is not one of the changes inside it."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return not isinstance(test.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq | ast.In | ast.NotIn)
    return not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _removable(statement: ast.stmt) -> bool:
    """Return whether a statement does something to objects, rather than give names to values."""
    if isinstance(statement, ast.Expr):
        logs = ast.unparse(statement).lower().startswith(("log.", "_log.", "logger.", "_logger.", "logging."))
        return not logs and not isinstance(statement.value, ast.Constant | ast.Yield | ast.YieldFrom)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Raise)


def _own_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions of a statement, without annotations and the statements in it."""
    found: list[ast.expr] = []
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        parts = value if isinstance(value, list) else [value]
        found += [part for part in parts if isinstance(part, ast.expr)]
        found += [part.context_expr for part in parts if isinstance(part, ast.withitem)]
    return found


def _expressions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes below, without texts for people and arguments that no result depends on."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in UNTESTED_ARGUMENTS):
            continue
        yield node
        yield from _expressions(ast.iter_child_nodes(node))


def _operator(node: ast.BinOp | ast.AugAssign) -> Iterator[Change]:
    new = OPERATORS.get(type(node.op))
    if new is not None and not _is_text(node):
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda: setattr(node, "op", new())


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    left = node.left if isinstance(node, ast.BinOp) else node.value
    return isinstance(left, ast.JoinedStr) or (isinstance(left, ast.Constant) and isinstance(left.value, str))


def _compared(node: ast.Compare, place: int) -> Iterator[Change]:
    new = COMPARISONS.get(type(node.ops[place]))
    if new is not None:
        yield f"{type(node.ops[place]).__name__} -> {new.__name__}", lambda: node.ops.__setitem__(place, new())


def _constant(node: ast.Constant) -> Iterator[Change]:
    old = node.value
    if isinstance(old, bool):
        new: bool | int | float = not old
    elif isinstance(old, int):
        new = old + 1
    elif isinstance(old, float):
        new = 2.0 * old if old else 1.0
    else:
        return
    yield f"{old!r} -> {new!r}", lambda: setattr(node, "value", new)


def _unary(node: ast.UnaryOp) -> Iterator[Change]:
    operand = node.operand
    if isinstance(node.op, ast.Not):
        yield "not removed", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), operand))
    elif isinstance(node.op, ast.USub):
        yield "minus removed", lambda: setattr(node, "op", ast.UAdd())
    elif isinstance(node.op, ast.Invert):
        yield "invert removed", lambda: setattr(node, "operand", ast.UnaryOp(ast.Invert(), operand))


def _called(node: ast.Call) -> Iterator[Change]:
    function = node.func
    field = "attr" if isinstance(function, ast.Attribute) else "id"
    name = getattr(function, field, None)
    if name in TWINS:
        yield f"{name} -> {TWINS[name]}", lambda: setattr(function, field, TWINS[name])


def _expression_changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place in range(len(node.ops)):
            yield from _compared(node, place)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node)
    elif isinstance(node, ast.BoolOp):
        new = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda: setattr(node, "op", new())
    elif isinstance(node, ast.UnaryOp):
        yield from _unary(node)
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Call):
        yield from _called(node)
    elif isinstance(node, ast.IfExp) and _negation_is_new(node.test):
        test = node.test
        yield "negated", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))


def mutated(source: str, key: Key) -> str:
    """Return the source with one change.

    Raises:
        KeyError: if there is no such mutant.
    """
    tree = ast.parse(source)
    for mutation in mutations(tree):
        if mutation.key == key:
            mutation.apply()
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    raise KeyError(key)
