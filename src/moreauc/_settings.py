"""Settings of the parts of a run: one description for checkpoints, for the agreement of processes, and for `repr`.

A part says itself what its results depend on: `settings()` returns values by name, as all losses and samplers of the
library do. For a part without that method one rule finds them, :func:`settings_of`.

Settings are compared as texts, of a value's type and contents. Weights and buffers are state and left out; other
tensors are described by a checksum, functions by their qualified names (so two lambdas of one line look alike), with
the arguments of a `functools.partial` and the object of a bound method, loggers by their names. Objects whose
attributes cannot be listed are described by their `repr`, or by their type where it names an address. Values that are
equal in Python have one text: 1 and 1.0, and a list and a tuple of the same values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import sys
import types
import zlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

Texts = dict[str, str]

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
CLASS = "the class"  # name of the type of a part, among its settings

_OF_ALL_MODULES = frozenset(vars(nn.Module())) | {"_compiled_call_impl"}
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, types.MethodWrapperType, np.ufunc)
_NOTHING = object()


def settings_of(part: object) -> dict[str, object]:
    """Return what a part of a run answers to `settings()`, or else what the rule finds.

    The rule takes the arguments of a module's constructor and its other attributes, among them modules inside, but no
    weights and buffers; the options of an optimizer's groups; and the public attributes of anything else, such as a
    scheduler, but for its optimizer.

    Example:
        >>> from moreauc.criteria import CrossEntropyLoss
        >>> settings_of(nn.Dropout(0.3))
        {'p': 0.3, 'inplace': False}
        >>> settings_of(torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], 0.1), 2))["step_size"]
        2
    """
    if _answers(part):
        return dict(part.settings())  # type: ignore[attr-defined]
    if isinstance(part, nn.Module):
        return module_settings(part)
    if isinstance(part, Optimizer):
        groups = enumerate(part.param_groups)
        return {f"{key} of group {n}": value for n, group in groups for key, value in group.items() if key != "params"}
    attributes = getattr(part, "__dict__", {})
    return {name: value for name, value in attributes.items() if name != "optimizer" and not name.startswith("_")}


def texts_of(part: object, *, contents: bool = True) -> Texts:
    """Return the settings of a part as texts, with its type; nothing for None.

    Without `contents` tensors are described by their types and shapes alone, which costs less.

    Example:
        >>> from moreauc.criteria import GroupDROLoss
        >>> texts_of(GroupDROLoss(3, top_k=2))["tau"]
        '0.9'
    """
    if part is None:
        return {}
    found = {name: text_of(value, contents=contents) for name, value in settings_of(part).items()}
    return {CLASS: _type_name(type(part)), **found}


def texts_of_network(model: nn.Module) -> Texts:
    """Return the settings of a model as texts.

    Where it does not answer itself these are the types of all modules in it, and their attributes that are plain data.

    Example:
        >>> texts_of_network(nn.Sequential(nn.Dropout(0.3)))
        {'the class': 'torch.nn.modules.container.Sequential',
         'the class of 0': 'torch.nn.modules.dropout.Dropout', '0.p': '0.3', '0.inplace': 'False'}
    """
    if _answers(model):
        return texts_of(model)
    found: Texts = {}
    for path, part in model.named_modules():
        found[f"{CLASS} of {path}" if path else CLASS] = _type_name(type(part))
        for name, value in vars(part).items():
            if name not in _OF_ALL_MODULES and not name.startswith("_") and _is_plain(value):
                found[f"{path}.{name}" if path else name] = text_of(value)
    return found


def _answers(part: object) -> bool:
    return callable(getattr(type(part), "settings", None))


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


def module_settings(module: nn.Module) -> dict[str, object]:
    """Return the attributes of a module that are settings, with the modules inside; no weights and no buffers.

    Arguments of the constructor come first, under the names that users know. A class names attributes that are no
    settings in `_UNDESCRIBED`, and buffers with labels or groups of the training set, which are, in `label_buffers`.
    """
    found: dict[str, object] = {}
    kind: Any = type(module)
    left_out = _left_out(kind) | module._buffers.keys() | module._parameters.keys()
    for name in _arguments(kind):
        if name not in left_out and (value := _argument(module, name)) is not _NOTHING:
            found[name] = value
    for key, value in {**vars(module), **module._modules}.items():
        if key not in left_out:
            found.setdefault(key.removeprefix("_"), value)
    for name in getattr(module, "label_buffers", ()):
        found[name if name in _arguments(kind) or "labels" in found else "labels"] = getattr(module, name)
    return found


def _argument(module: nn.Module, name: str) -> object:
    """Return the present value of an argument of the constructor, if it is known."""
    for place in (name, *_PLACES.get(name, ())):
        value: object = module
        for step in place.split("."):
            value = getattr(value, step, _NOTHING)
        if value is not _NOTHING:
            return value
    return _NOTHING


def arguments_text(module: nn.Module) -> str:
    """Return the arguments of a module's constructor in one line, with their present values; None is left out.

    Tensors are described by type and shape, surrogates and poolings by their names, networks by their classes.
    """
    kind: Any = type(module)
    settings = settings_of(module)
    for name in ("surrogate", "pooling"):
        settings[name] = getattr(settings.get(name), "name", settings.get(name))
    found = ((name, settings.get(name)) for name in _arguments(kind) if name != "labels")  # a loss shows their number
    return ", ".join(f"{name}={_short(value)}" for name, value in found if value is not None)


def _short(value: object) -> str:
    if isinstance(value, nn.Module):
        return repr(value) if type(value).__module__.startswith("moreauc.criteria") else _type_name(type(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' if len(value) == 1 else ''})"
    text = text_of(value, contents=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def text_of(value: object, *, contents: bool = True) -> str:
    """Return a text that is equal for equal values: the type and all that a value holds.

    `contents` is as for :func:`texts_of`.

    Example:
        >>> from moreauc.core.surrogates import get_surrogate
        >>> text_of({"loss": get_surrogate("hinge", 0.5), "sizes": (3, np.int64(4))})
        "{'loss': Hinge(margin=0.5), 'sizes': (3, 4)}"
        >>> text_of(functools.partial(torch.clamp, min=0.0))
        'partial(torch._VariableFunctionsClass.clamp, min=0)'
    """
    return _text(value, contents, (), {})


def _text(value: object, contents: bool, above: tuple[int, ...], seen: dict[int, object]) -> str:
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

    def inner(part: object) -> str:
        return _text(part, contents, (*above, id(value)), seen)

    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{inner(key)}: {inner(entry)}" for key, entry in value.items())) + "}"
    if isinstance(value, AbstractSet):
        return "{" + ", ".join(sorted(map(inner, value))) + "}"
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
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


def _contents(value: object) -> Iterable[tuple[str, object]] | None:
    """Return the attributes of an object by name; None where they cannot be listed."""
    if _answers(value) or isinstance(value, nn.Module):
        return settings_of(value).items()
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


def tensor_text(value: Tensor | NDArray[np.generic], *, contents: bool = True) -> str:
    """Return type, shape and, if asked for, a checksum of what a tensor or an array holds."""
    kind = f"{value.dtype} of shape {tuple(value.shape)}"
    return f"{kind} with checksum {zlib.crc32(_bytes(value)):08x}" if contents else kind


def _bytes(value: Tensor | NDArray[np.generic]) -> bytes:
    if isinstance(value, np.ndarray):
        return repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().reshape(-1))  # NumPy has no bfloat16
    return flat.view(torch.uint8).numpy().tobytes()


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, PLAIN)


def _type_name(kind: object) -> str:
    """Return the name of a class or a function, with that of its module unless it is the library's."""
    name = str(getattr(kind, "__qualname__", None) or getattr(kind, "__name__", ""))
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
        found = zlib.crc32(_bytes(tensor), found)
    return f"{found:08x}"
