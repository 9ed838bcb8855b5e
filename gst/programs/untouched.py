"""Snapshot of all state that a user's code reaches, to undo each change that a run makes, and to name it.

Capture and trials run the user's own Python on the user's own objects. They leave no trace: attributes, dictionaries,
caches, weights, gradients, optimizers, hooks, random state and global modes are restored, also after an exception.
"""

from __future__ import annotations

import dis
import functools
import io
import itertools
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gst.programs.users_code import is_own, noted, original, outside_calls

ATTRIBUTE, VALUE, TRAINING, INPUT, OUTSIDE = "attribute", "value", "training", "input", "outside"
SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
ITERATORS: tuple[type, ...] = (GeneratorType, itertools.count, *map(type, map(iter, ([], (), set(), {}, range(0)))))
GENERATORS: tuple[type, ...] = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
GLOBAL_GENERATORS: dict[str, Any] = {"Python": random._inst, "NumPy": np.random.mtrand._rand}
NOTES = (
    "meta", "_lineno_map", "_prologue_start", "_tracer_extras", "_replace_hooks", "_create_node_hooks",
    "_erase_node_hooks", "_deepcopy_hooks",
)  # fmt: skip
"""Attributes that exports write to an `fx.GraphModule`, for their own use."""
OPAQUE = ("torch._", "torch.fx", "gst.", "builtins", "logging", "threading", "_thread", "weakref")
TABLES = ("_parameters", "_buffers", "_modules")
MOST_OBJECTS = 10**6
MOST_BYTES = 2**16  # of an array that is compared at each call
GLOBAL_HOOKS = [(name, each) for name, each in vars(nn.modules.module).items() if name.startswith("_global_")]

Parts = dict[Any, Any]
Named = Iterable[tuple[str, Any]]


class Change(NamedTuple):
    """One change that a run made, and that was undone."""

    name: str  # of the part that changed, as `layers.0.cache['cpu']`
    kind: str  # ATTRIBUTE (entry of an object), VALUE (of a tensor or array), TRAINING (gradient, optimizer) or OUTSIDE


class Watch(NamedTuple):
    """Parts of one object by key: as they were, how they are read and put back, their names, the kind of a change, and
    the dictionary that holds them, if there is one."""

    before: Parts
    read: Callable[[], Parts]
    put: Callable[[Parts], object]
    named: Callable[[Any], str]
    kind: str
    table: dict[Any, Any] | None

    def changed(self) -> list[Any]:
        """Return the keys of parts that are other ones now."""
        was, now = self.before, self.read()
        return [key for key in {**was, **now} if not (key in was and key in now and _same(was[key], now[key]))]


class Snapshot:
    """State that is reachable from some objects: attributes, containers, closures, and globals that functions name.

    Attributes:
        changes: all that were undone so far.
        tensors: with their names, if `copies` is False: then state is compared, and never restored.
    """

    def __init__(self, roots: Iterable[Any], inputs: Any = (), copies: bool = True) -> None:
        self.changes: list[Change] = []
        self._copies = copies
        self.tensors: list[tuple[str, Tensor]] = []
        self._watches: list[Watch] = []
        self._noting: list[Watch] = []  # those whose functions note their calls
        self._contents: dict[int, tuple[str, str, Any, Any]] = {}
        self._versions: list[tuple[Tensor, int]] = []
        self._derived: list[str] = []  # names of attributes that PyTorch writes itself
        self._modes = [(get(), get, put) for get, put in MODES]
        self._random = _torch_random()
        self._objects: dict[int, Any] = {}  # keeps them, so that no other object gets their ids
        for name, value in GLOBAL_GENERATORS.items():
            self._objects[id(value)] = value
            self._state_of(name, value)
        waiting = [(name, each, ATTRIBUTE) for name, each in (*GLOBAL_HOOKS, *(("", each) for each in roots))]
        later = [("", inputs, INPUT)]  # and optimizers, so that weights are named as in their module
        while (waiting or later) and len(self._objects) < MOST_OBJECTS:
            name, value, kind = (waiting or later).pop()
            if id(value) in self._objects:
                continue
            if isinstance(value, torch.optim.Optimizer) and kind != TRAINING:
                later.append((name, value, TRAINING))
                continue
            self._objects[id(value)] = value
            inner = self._watched(name, value, kind)
            waiting += [(label, each, kind) for label, each in inner if not isinstance(each, SIMPLE)]

    def restore(self) -> None:
        """Undo all changes since the snapshot."""
        changes: list[Change] = []
        for watch in self._noting:
            watch.put({key: original(each) for key, each in watch.read().items()})
        for watch in self._watches:
            keys = watch.changed()
            if keys or list(watch.before) != list(watch.read()):
                with suppress(AttributeError, TypeError):  # read-only attributes of extension types
                    watch.put(watch.before)
            changes += [Change(watch.named(key), watch.kind) for key in keys]
        for name, kind, live, copy in self._contents.values():
            if not _equal(live, copy):
                _refill(live, copy)
                changes.append(Change(name, kind))
        for tensor, version in self._versions:
            if tensor._version != version:
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
        for mode, get, put in self._modes:
            if get() != mode:
                put(mode)
        for state, put in self._random:
            put(state)
        named = [each for each in changes if each.kind != INPUT and not is_part(each.name, self._derived)]
        self.changes = list(dict.fromkeys([*self.changes, *named]))

    def note_calls(self) -> None:
        """Let the user's own references to clocks and the like, in globals and attributes, note calls of them."""
        for watch in self._watches:
            if others := {key: other for key, each in watch.before.items() if (other := noted(each)) is not None}:
                watch.put({**watch.before, **others})
                self._noting.append(watch)

    def _watch(
        self, kind: str, read: Callable[[], Parts], put: Callable[[Parts], object], named: Callable[[Any], str] = str,
        table: dict[Any, Any] | None = None,
    ) -> Named:  # fmt: skip
        """Watch the parts of an object, and return them with their names."""
        before = read()
        self._watches.append(Watch(before, read, put, named, kind, table))
        return [(named(key), each) for key, each in before.items()]

    def _attributes(self, value: Any, names: list[str], kind: str, named: Callable[[Any], str]) -> Named:
        def read() -> Parts:
            return {name: getattr(value, name) for name in names if hasattr(value, name)}

        def put(before: Parts) -> None:
            for name in names:
                if name in before:
                    setattr(value, name, before[name])
                elif hasattr(value, name):
                    delattr(value, name)

        return self._watch(kind, read, put, named)

    def _watch_content(self, name: str, kind: str, live: Any, home: int) -> None:
        if home in self._contents:
            return
        if not self._copies:
            if isinstance(live, set | bytearray) or live.nbytes <= MOST_BYTES:
                read = live.tobytes if isinstance(live, np.ndarray) else partial(tuple, live)
                self._watch(kind, lambda: {name: read()}, lambda _: None)
            return
        outer = [each._contents[home][-1] for each in _active if home in each._contents]
        copy = next((each for each in outer if type(each) is type(live) and _equal(live, each)), None)  # no second copy
        if copy is None:
            copy = live.clone() if isinstance(live, Tensor) else live.copy()
        self._contents[home] = name, kind, live, copy

    def _watched(self, name: str, value: Any, kind: str) -> Named:
        """Watch one object, and return its references."""
        item = partial(_item, name)
        if isinstance(value, Tensor):
            return self._tensor(name, value, kind)
        if isinstance(value, tuple):
            return [(item(key), each) for key, each in enumerate(value)]
        if isinstance(value, dict):
            return self._watch(kind, lambda: dict(value), partial(_refill_dict, value), item, value)
        if isinstance(value, list | deque):
            return self._watch(kind, lambda: dict(enumerate(value)), partial(_refill_list, value), item)
        if isinstance(value, set | bytearray | np.ndarray) and not name.endswith("_non_persistent_buffers_set"):
            self._watch_content(name, VALUE if isinstance(value, np.ndarray) else kind, value, id(value))
        elif isinstance(value, torch.Generator):
            self._random.append((value.get_state(), value.set_state))
        elif isinstance(value, (*GENERATORS, *ITERATORS, io.IOBase)):
            self._state_of(name, value)
        elif isinstance(value, CellType):
            return self._attributes(value, ["cell_contents"], kind, lambda _: name)
        elif isinstance(value, MethodType):
            return [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, BuiltinMethodType):
            return [(name, value.__self__)]
        elif isinstance(value, FunctionType):
            return self._function(value, kind)
        elif isinstance(value, functools._lru_cache_wrapper):
            size = f"the cache of {value.__name__}"
            is_named = is_own(value.__module__) and self._copies  # packages remember what is installed, for example
            kind = kind if is_named else INPUT
            self._watch(kind, lambda: {size: value.cache_info().currsize}, lambda _: value.cache_clear())
            return [(name, value.__wrapped__)]
        elif isinstance(value, functools.partial | staticmethod | classmethod | property | functools.cached_property):
            inner = ("func", "args", "keywords", "__func__", "fget")
            return [(name, getattr(value, each, None)) for each in inner]
        elif isinstance(value, type):
            return self._class(value, kind) if is_own(value.__module__) else []
        elif isinstance(value, nn.Module) or not type(value).__module__.startswith(OPAQUE):
            return self._object(name, value, kind)
        return []

    def _state_of(self, name: str, value: Any) -> None:
        """Watch the state of a generator of random numbers, of an iterator, or of an open file."""
        if not self._copies:
            return
        what = "random numbers of" if isinstance(value, GENERATORS) else "values of the iterator"
        label = f"{'a file,' if isinstance(value, io.IOBase) else what} {name}"
        with suppress(NotImplementedError, OSError, ValueError):  # of the system's entropy, of a closed file
            get, put = _state(value)
            is_checked = value is random._inst and "beartype" in sys.modules  # which draws from it to check arguments
            self._watch(INPUT if is_checked else OUTSIDE, lambda: {label: get()}, lambda _: put())

    def _object(self, name: str, value: Any, kind: str) -> Named:
        inner = [(type(value).__name__, type(value))]
        slots = [each for of in type(value).__mro__[:-1] for each in _slots(of)]
        if slots:
            inner += self._attributes(value, slots, kind, partial(_joined, name))
        tables = [getattr(value, "__dict__", None)]
        if isinstance(value, nn.Module):  # entries of its tables are attributes
            tables += map(value.__dict__.get, TABLES)
        for table in tables:
            if isinstance(table, dict) and id(table) not in self._objects:
                self._objects[id(table)] = table
                put, named = partial(_refill_dict, table), partial(_joined, name)
                inner += self._watch(kind, partial(dict, table), put, named, table)
        if isinstance(value, nn.Module):
            self._derived += [_joined(name, each) for each in derived_attributes(value)]
        return [(label, each) for label, each in inner if id(each) not in map(id, tables)]

    def _function(self, function: FunctionType, kind: str) -> Named:
        inner: list[tuple[str, Any]] = [*zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)]
        module = function.__globals__
        if is_own(str(function.__module__)) and is_own(str(module.get("__name__"))):
            others = (function.__defaults__, function.__kwdefaults__, vars(function))
            inner += [(function.__name__, each) for each in others]
            names, of_globals = _names(function.__code__)
            inner += self._globals("", module, of_globals, kind)
            for name in of_globals:
                if isinstance(other := module.get(name), ModuleType) and is_own(other.__name__):
                    inner += self._globals(name, vars(other), names, kind)
            if "datetime" in names and (reads := names & {"now", "today", "utcnow"}):
                self.changes.append(Change(f"datetime.{min(reads)} in {function.__name__}", OUTSIDE))
        return inner

    def _globals(self, name: str, module: dict[str, Any], names: frozenset[str], kind: str) -> Named:
        return self._watch(
            kind, lambda: {each: module[each] for each in names if each in module},
            lambda before: _refill_dict(module, {**{k: v for k, v in module.items() if k not in names}, **before}),
            partial(_joined, name), module,
        )  # fmt: skip

    def _class(self, of: type, kind: str) -> Named:
        def read() -> Parts:
            return {key: each for key, each in vars(of).items() if not key.startswith(("__", "_abc_"))}

        def put(before: Parts) -> None:
            for key, now in read().items():
                if key not in before:
                    delattr(of, key)
                elif now is not before[key]:
                    setattr(of, key, before[key])

        inner = self._watch(kind, read, put, partial(_joined, of.__name__))
        return [*inner, *((each.__name__, each) for each in of.__bases__)]

    def _tensor(self, name: str, value: Tensor, kind: str) -> Named:
        if isinstance(value, FakeTensor) or value.device.type == "meta" or nn.parameter.is_lazy(value):
            return []
        if not self._copies:
            self.tensors.append((name, value))
            return []
        kind = TRAINING if name.startswith("the gradient of") else kind
        alias, was_leaf, place = value.detach(), value.is_leaf, f"the memory of {name}"

        def put(before: Parts) -> None:
            with torch.no_grad():
                if value.is_leaf != was_leaf:
                    value.detach_()
                if _place(value)[:-2] != before[place][:-2]:
                    value.data = alias
                if was_leaf:
                    value.requires_grad_(before[place][-1])
                value._backward_hooks = before["its hooks"]

        inner = self._watch(kind, lambda: {place: _place(value), "its hooks": value._backward_hooks}, put)
        if was_leaf:
            of = INPUT if kind == INPUT else TRAINING
            inner = [*inner, *self._attributes(value, ["grad"], of, lambda _: f"the gradient of {name}")]
        if own := vars(value):
            inner = [*inner, *self._watch(kind, lambda: _users(own), own.update, partial(_joined, name))]
        live = _memory(alias)
        home = id(value) if live is alias else live.untyped_storage()._cdata
        self._watch_content(name, VALUE if kind == ATTRIBUTE else kind, live, home)
        if not value.is_inference():
            self._versions.append((value, value._version))
        return inner


_active: list[Snapshot] = []  # inner ones use the copies of outer ones


@contextmanager
def untouched(*roots: Any, inputs: Any = (), notes_calls: bool = False) -> Iterator[Snapshot]:
    """Undo everything that the body changes in the state that `roots` reach: functions, modules, optimizers, tensors,
    containers and other objects; random state and global modes too.

    Args:
        roots: objects of the user.
        inputs: further objects, whose changes are undone, and not named in `changes`.
        notes_calls: True to name clocks, files and the like that the user's code reads among the changes.

    Yields:
        The snapshot; its `changes` are complete after the body.

    Examples:
        >>> cache = {}
        >>> with untouched(cache) as state:
        ...     cache["x"] = 1
        >>> cache, [change.name for change in state.changes]
        ({}, ["['x']"])
    """
    snapshot = Snapshot(roots, inputs)
    _active.append(snapshot)
    calls: list[str] = []
    try:
        with outside_calls() if notes_calls else nullcontext(calls) as calls:
            if notes_calls:
                snapshot.note_calls()
            yield snapshot
    finally:
        _active.remove(snapshot)
        snapshot.changes += [Change(each, OUTSIDE) for each in calls]
        snapshot.restore()


def words(changes: Sequence[Change]) -> str:
    """Name the first changes of a run, and what it reads that is no input: "changes a, b and reads c"."""
    read = [each.name for each in changes if each.kind == OUTSIDE]
    groups = {"changes": [each.name for each in changes if each.kind != OUTSIDE], "reads": read}
    parts = [f"{verb} {', '.join(names[:3])}" + f" and {len(names) - 3} more" * (len(names) > 3)
             for verb, names in groups.items() if names]  # fmt: skip
    return " and ".join(parts)


def derived_attributes(module: nn.Module) -> list[str]:
    """Return names of attributes that PyTorch itself writes: the list of weights of a recurrent module, weights under
    the older `weight_norm` and `spectral_norm`, and notes of exports on an `fx.GraphModule`.

    Examples:
        >>> derived_attributes(nn.LSTM(1, 1)), derived_attributes(nn.Linear(1, 1))
        (['_flat_weights', '_flat_weight_refs'], [])
    """
    own = ["_flat_weights", "_flat_weight_refs"] if isinstance(module, nn.RNNBase) else []
    own += NOTES if isinstance(module, fx.GraphModule) else []
    hooks = [each for each in module._forward_pre_hooks.values() if type(each).__module__.startswith("torch.nn.utils")]
    return own + [each.name for each in hooks if hasattr(each, "name")]


def is_part(name: str, attributes: Sequence[str]) -> bool:
    """True for the name of one of some attributes, and of its parts.

    Examples:
        >>> [is_part(name, ["weight"]) for name in ("weight", "weight[0]", "weight.scale", "weight_scale")]
        [True, True, True, False]
    """
    return f"{name}.".startswith(tuple(f"{each}{end}" for each in attributes for end in ".["))


# Parts of objects ----------------------------------------------------------------------------------------------------


def _same(a: Any, b: Any) -> bool:
    """True for the same object, and for equal numbers, texts, and tuples of them."""
    if isinstance(a, tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (type(a) is type(b) and isinstance(a, SIMPLE) and (a == b or (a != a and b != b)))


def _equal(live: Any, copy: Any) -> bool:
    if isinstance(live, Tensor):
        if live.is_nested:
            return all(map(torch.equal, live.unbind(), copy.unbind()))
        return torch.equal(*((live, copy) if live.layout == torch.strided else (live.to_dense(), copy.to_dense())))
    if isinstance(live, np.ndarray):
        return bool(live.dtype == object or live.tobytes() == copy.tobytes())
    return bool(live == copy)


def _refill(live: Any, copy: Any) -> None:
    if isinstance(live, Tensor):
        with torch.no_grad():
            live.copy_(copy)
    elif isinstance(live, set):
        live.clear()
        live.update(copy)
    else:
        live[...] = copy


def _refill_dict(table: dict[Any, Any], before: Parts) -> None:
    kind = OrderedDict if isinstance(table, OrderedDict) else dict  # not methods of the user's own class
    kind.clear(table)
    kind.update(table, before)


def _refill_list(values: Any, before: Parts) -> None:
    values.clear()
    values.extend(before.values())


def _users(attributes: dict[str, Any]) -> Parts:
    return {key: each for key, each in attributes.items() if not key.startswith("_dynamo")}


def _slots(of: type) -> list[str]:
    slots = vars(of).get("__slots__", ())
    return [each for each in ([slots] if isinstance(slots, str) else slots) if not each.startswith("__")]


def _place(value: Tensor) -> tuple[Any, ...]:
    where: tuple[Any, ...] = ()
    with suppress(RuntimeError, NotImplementedError):  # of a sparse one, for example
        where = value.data_ptr(), tuple(value.shape), value.stride()
    return *where, value.dtype, value.is_leaf, value.requires_grad


def _memory(value: Tensor) -> Tensor:
    """Return the bytes of the memory that a tensor shows; itself if it has none of its own, as a sparse one."""
    try:
        return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return value


def _item(name: str, key: Any) -> str:
    return f"{name}[{key!r}]" if isinstance(key, SIMPLE) else f"{name}[a {type(key).__name__}]"


def _joined(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


@functools.cache
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return all names in a function, attributes too, and those of globals alone."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    own = {each.argval for each in dis.get_instructions(code) if each.opname.endswith(("_GLOBAL", "_NAME"))}
    return frozenset(code.co_names).union(*(a for a, _ in inner)), frozenset(own).union(*(b for _, b in inner))


# Modes and random numbers --------------------------------------------------------------------------------------------

MODES: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    *(
        (partial(get, kind), partial(put, kind))
        for kind in ("cpu", "cuda")
        for get, put in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
]


def _torch_random() -> list[tuple[Any, Callable[[Any], Any]]]:
    states: list[tuple[Any, Callable[[Any], Any]]] = [(torch.get_rng_state(), torch.set_rng_state)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append((torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all))
    return states


def _state(value: Any) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return functions that read the state of a random generator, a file or an iterator, and put it back.

    States are simple values or tuples; iterators do not go back.
    """
    if isinstance(value, random.Random):
        return value.getstate, partial(value.setstate, value.getstate())
    if isinstance(value, io.IOBase):
        return value.tell, partial(value.seek, value.tell())
    if isinstance(value, np.random.RandomState):
        return lambda: _flat(value.get_state(legacy=False)), partial(value.set_state, value.get_state(legacy=False))
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        return lambda: _flat(bits.state), partial(setattr, bits, "state", bits.state)
    if isinstance(value, GeneratorType):
        return lambda: (value.gi_frame and (value.gi_frame.f_lasti, *value.gi_frame.f_locals.values()),), lambda: None
    return lambda: (operator.length_hint(value, -1), repr(value)), lambda: None


def _flat(state: Any) -> tuple[Any, ...]:
    return tuple(each.tobytes() if isinstance(each, np.ndarray) else each for each in pytree.tree_leaves(state))
