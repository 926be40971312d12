"""Settings as text, by which losses and runs are compared: for checkpoints, agreement of processes, and `repr`.

A value is described by its type and its contents. Weights and buffers are state and left out; other tensors
are described by a checksum, functions by their qualified names (so two lambdas of one line look alike), with the
arguments of a `functools.partial` and the object of a bound method, loggers by their names. Objects whose attributes
cannot be listed are described by their `repr`, or by their type where it names an address. Values that are equal in
Python have one text: 1 and 1.0, and a list and a tuple of the same values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

_OF_ALL_MODULES = frozenset(vars(nn.Module())) | {"_compiled_call_impl"}
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, types.MethodWrapperType, np.ufunc)


def describe(module: nn.Module, *, contents: bool = True) -> dict[str, str]:
    """Return the settings of a loss, by name: types and attributes of it and of all modules inside of it.

    Arguments of the constructor that are attributes or properties come first, under the names that users know. A class
    names attributes that are no settings in `_UNDESCRIBED`.

    Args:
        module: the loss.
        contents: whether tensors are described by what they hold; their types and shapes alone cost less.

    Example:
        >>> from moreauc.criteria import CrossEntropyLoss
        >>> describe(CrossEntropyLoss([0, 1, 1], positive_weight=2.0))
        {'the class': 'CrossEntropyLoss', 'positive_weight': '2', 'num_positives': '2', 'num_negatives': '1'}
    """
    found: dict[str, str] = {}
    for path, part in module.named_modules():
        found[f"the class of {path}" if path else "the class"] = _type_name(type(part))
        begin = f"{path}." if path else ""
        found |= {begin + name: text_of(value, contents=contents) for name, value in settings_of(part)}
    return found


def describe_network(model: nn.Module) -> dict[str, str]:
    """Return what is known of a model: the types of all modules in it, and their attributes that are plain data.

    Objects are left out: a model may hold anything, its own configuration with paths and versions, for instance.

    Example:
        >>> describe_network(nn.Sequential(nn.Dropout(0.3)))
        {'the class': 'torch.nn.modules.container.Sequential',
         'the class of 0': 'torch.nn.modules.dropout.Dropout', '0.p': '0.3', '0.inplace': 'False'}
    """
    found: dict[str, str] = {}
    for path, part in model.named_modules():
        found[f"the class of {path}" if path else "the class"] = _type_name(type(part))
        for name, value in vars(part).items():
            if name not in _OF_ALL_MODULES and not name.startswith("_") and _is_plain(value):
                found[f"{path}.{name}" if path else name] = text_of(value)
    return found


def settings_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module that are settings, by the names that users know; no state, no module inside."""
    kind: Any = type(module)
    left_out, seen = _left_out(kind), set()
    for name in _arguments(kind):
        value = getattr(module, name, module)  # the module itself stands for a missing attribute
        if not isinstance(value, nn.Module) and name not in module._buffers and name not in module._parameters:
            seen.add(name)
            yield name, value
    for key, value in vars(module).items():
        name = key.removeprefix("_")
        if key not in left_out and name not in seen:
            yield name, value


def settings_text(module: nn.Module) -> str:
    """Return the settings of a module in one line, for `extra_repr`."""
    return ", ".join(f"{name}={text_of(value)}" for name, value in settings_of(module))


# arguments that are no attributes of the loss itself: where their values are
_PLACES = {
    "margin": ("surrogate.margin",),
    "temperature": ("pooling.temperature",),
    "initial": ("table_u.initial",),
    "initial_u": ("table_u.initial",),
    "initial_v": ("table_v.initial",),
    "bound": ("table_v.rule.bound", "table_u.rule.bound"),
}
_LONGEST = 100  # letters of one argument


def arguments_text(module: nn.Module) -> str:
    """Return the arguments of a module's constructor in one line, with their present values; None is left out.

    Tensors are described by type and shape, surrogates and poolings by their names, networks by their classes.
    """
    kind: Any = type(module)
    found = ((name, _argument(module, name)) for name in _arguments(kind))
    return ", ".join(f"{name}={_short(value)}" for name, value in found if value is not None)


def _argument(module: nn.Module, name: str) -> Any:
    """Return the value of an argument; None where it is not known."""
    for place in (name, *_PLACES.get(name, ())):
        value: Any = module
        for step in place.split("."):
            value = getattr(value, step, None)
        if value is not None:
            return getattr(value, "name", value) if name in ("surrogate", "pooling") else value
    return None


def _short(value: Any) -> str:
    if isinstance(value, nn.Module):
        return repr(value) if type(value).__module__.startswith("moreauc.criteria") else _type_name(type(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' if len(value) == 1 else ''})"
    text = text_of(value, contents=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def text_of(value: Any, *, contents: bool = True) -> str:
    """Return a text that is equal for equal values: the type and all that a value holds.

    Args:
        value: anything.
        contents: as for :func:`describe`.

    Example:
        >>> from moreauc.core.surrogates import get_surrogate
        >>> text_of({"loss": get_surrogate("hinge", 0.5), "sizes": (3, np.int64(4))})
        "{'loss': Hinge(margin=0.5), 'sizes': (3, 4)}"
        >>> text_of(functools.partial(torch.clamp, min=0.0))
        'partial(torch._VariableFunctionsClass.clamp, min=0)'
    """
    return _text(value, contents, (), {})


def _text(value: Any, contents: bool, above: tuple[int, ...], seen: dict[int, Any]) -> str:
    """Return the text of a value inside those `above`; `seen`: objects that have been described already."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float) and not isinstance(value, bool | Enum):
        return _number_text(value)
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        return tensor_text(value, contents=contents)
    if isinstance(value, _FUNCTIONS):
        return _type_name(value)
    if isinstance(value, Enum):
        return f"{_type_name(type(value))}.{value.name}"
    if id(value) in above or id(value) in seen:
        return "..."

    def inner(part: Any) -> str:
        return _text(part, contents, (*above, id(value)), seen)

    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{inner(key)}: {inner(entry)}" for key, entry in value.items())) + "}"
    if isinstance(value, AbstractSet):
        return "{" + ", ".join(sorted(map(inner, value))) + "}"
    if type(value) in (tuple, list):
        return f"({', '.join(map(inner, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, types.MethodType):
        return f"{inner(value.__self__)}.{value.__name__}"
    if isinstance(value, functools.partial):
        named = [f"{name}={inner(part)}" for name, part in sorted(value.keywords.items())]
        return f"partial({', '.join([inner(value.func), *map(inner, value.args), *named])})"
    if isinstance(value, logging.Logger):  # its attributes are parent loggers and caches
        return f"{_type_name(type(value))}({value.name!r})"
    if (held := _contents(value)) is None:
        name = repr(value)
        return _type_name(type(value)) if " at 0x" in name else name
    if not isinstance(value, nn.Module | tuple | list) and not dataclasses.is_dataclass(value):
        seen[id(value)] = value  # objects with references to each other would be described along every path
    return f"{_type_name(type(value))}({', '.join(f'{name}={inner(part)}' for name, part in held)})"


def _number_text(value: float) -> str:
    """Return a number as text; 1 and 1.0 are one setting."""
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 2**53)
    return repr(int(value)) if whole else repr(float(value))


def _contents(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the attributes of an object by name; None where they cannot be listed."""
    if isinstance(value, nn.Module):
        return (*settings_of(value), *value.named_children())
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr]
    if isinstance(value, tuple | list):  # of a class of its own
        names = getattr(value, "_fields", map(str, range(len(value))))
        return zip(names, value, strict=True)
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    if not slots and not hasattr(value, "__dict__"):
        return None
    return (*((name, getattr(value, name)) for name in slots), *getattr(value, "__dict__", {}).items())


def _slots(kind: type) -> list[str]:
    """Return the names of the slots of a class; none for the standard library, whose slots include caches."""
    names = () if kind.__module__.partition(".")[0] in sys.stdlib_module_names else vars(kind).get("__slots__", ())
    names = [names] if isinstance(names, str) else [name for name in names if name not in ("__dict__", "__weakref__")]
    return [f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name for name in names]


def tensor_text(value: Tensor | np.ndarray[Any, Any], *, contents: bool = True) -> str:
    """Return type, shape and, if asked for, a checksum of what a tensor or an array holds."""
    kind = f"{value.dtype} of shape {tuple(value.shape)}"
    if not contents:
        return kind
    if isinstance(value, np.ndarray):
        data = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    else:
        flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().reshape(-1))
        data = flat.view(torch.uint8).numpy().tobytes()
    return f"{kind} with checksum {zlib.crc32(data):08x}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, PLAIN)


def _type_name(kind: Any) -> str:
    """Return the name of a class or a function, with that of its module unless it is the library's."""
    name = str(getattr(kind, "__qualname__", None) or kind.__name__)
    place = getattr(kind, "__module__", None) or ""
    return name if place.partition(".")[0] in ("moreauc", "builtins", "") else f"{place}.{name}"


@functools.cache
def _left_out(kind: type) -> frozenset[str]:
    return _OF_ALL_MODULES.union(*(vars(base).get("_UNDESCRIBED", ()) for base in kind.__mro__))


@functools.cache
def _arguments(kind: type) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def checksum(tensors: Iterable[Tensor]) -> str:
    """Return the CRC-32 of tensors, of their kinds and shapes and of what they hold, as eight digits.

    Example:
        >>> import torch
        >>> checksum([torch.tensor([1, 2])]), checksum([torch.tensor([2, 1])])
        ('56437a37', 'f104c926')
    """
    found = 0
    for tensor in tensors:
        found = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), found)
    return f"{found:08x}"
