"""Which public names and arguments have no documentation. The site is not built while there are any."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import moreauc

_LISTED = re.compile(r"^ {3}(moreauc(?:\.\w+)+)$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Shape|Returns|Raises|Example|Reference)s?:$")
_ENTRY = re.compile(r"^(?: {4}(?:- )?)([*\w]+(?:, [*\w]+)*)(?: \([^)]*\))?:")


@dataclass
class Found:
    """What `check_api` saw.

    Attributes:
        documented: public names without a problem.
        arguments: arguments looked at.
        problems: a sentence for each thing that is missing.
    """

    documented: int = 0
    arguments: int = 0
    problems: list[str] = field(default_factory=list)


def public_names() -> dict[str, Any]:
    """Return what the modules' `__all__` hold, by full name; what `moreauc` itself has only by that one."""
    found = {f"moreauc.{name}": getattr(moreauc, name) for name in moreauc.__all__}
    for info in pkgutil.walk_packages(moreauc.__path__, "moreauc."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not any(value is other for other in found.values()):
                found[f"{info.name}.{name}"] = value
    return found


def check_api(pages: str) -> Found:
    """Compare the names that pages list with the public ones, and these with their docstrings."""
    names, listed = public_names(), _LISTED.findall(pages)
    found = Found()
    found.problems += [f"{name} is public, but not in docs/reference" for name in names if name not in listed]
    found.problems += [f"docs/reference lists {name}, which is not public" for name in listed if name not in names]
    found.problems += [f"docs/reference lists {name} twice" for name in set(listed) if listed.count(name) > 1]
    for name, value in names.items():
        missing = [*undocumented(name, value, found)]
        found.problems += missing
        found.documented += not missing
    return found


def undocumented(name: str, value: Any, found: Found) -> Iterator[str]:
    """Yield what is missing: docstrings of a name and of its methods, arguments of a function or constructor."""
    if isinstance(value, ModuleType) or not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    text = inspect.getdoc(value) or ""
    if not text:
        yield f"{name} has no docstring"
    yield from _arguments(name, value, text, found)
    if inspect.isclass(value):
        for key, method in vars(value).items():
            if key.startswith("_") or not inspect.isfunction(method):
                continue
            if not inspect.getdoc(getattr(value, key)):  # that of the base class counts
                yield f"{name}.{key} has no docstring"


def _arguments(name: str, function: Callable[..., Any], text: str, found: Found) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return
    described = described_arguments(text)
    for parameter in parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        found.arguments += 1
        if parameter.name not in described and not re.search(rf"`{parameter.name}`", text):
            yield f"{name}: the argument {parameter.name} is not documented"


def described_arguments(text: str) -> set[str]:
    r"""Return the names that the sections "Args", "Attributes" and "Shape" of a docstring describe.

    Example:
        >>> sorted(described_arguments("Add.\n\nArgs:\n    a, b: numbers.\n    c: more\n        words: none.\n"))
        ['a', 'b', 'c']
    """
    found: set[str] = set()
    inside = False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            section = _SECTION.match(line)
            inside = section is not None and section[1] in ("Args", "Attributes", "Shape")
        elif inside and (entry := _ENTRY.match(line)):
            found |= {name.lstrip("*") for name in entry[1].split(", ")}
            found |= set(re.findall(r"; (\w+): `", line))  # several on one line of "Shape"
    return found
