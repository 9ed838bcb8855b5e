"""A step by its name, as on the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from gst.programs.step import Step
from gst.programs.workloads import WORKLOADS
from gst.programs.workloads.hugging_face import PREFIX, hugging_face

KINDS = f"{PREFIX}:MODEL, MODULE:FUNCTION"


def resolve(name: str) -> Step:
    """The step of a name:

    - `rnnlm`, a bundled workload, or with arguments `rnnlm:layers=8,hidden=512`;
    - `transformers:gpt2`, a model of the transformers library (extra `models`), or `transformers:gpt2:n_layer=2`;
    - `module:function`, what that function returns when called without arguments.

    Raises:
        ValueError: no such workload, argument, model, module or function, or it does not return a `Step`.
    """
    head, _, rest = name.partition(":")
    if head in WORKLOADS:
        return _built(name, WORKLOADS[head], _arguments(name, rest))
    if head == PREFIX:
        model, _, rest = rest.partition(":")
        return hugging_face(model, _arguments(name, rest))
    if not head or not rest:
        known = ", ".join(sorted(WORKLOADS))
        raise ValueError(f"no workload {name!r}; want {KINDS} or one of {known}")
    return _from_function(name, head, rest)


def _arguments(name: str, text: str) -> dict[str, Any]:
    """`layers=8,optimizer=adam` as a dictionary; numbers are whole and, but for the seed, at least 1."""
    arguments: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"{name!r}: {part!r} is no argument; write name=value,name=value")
        number = int(value) if value.isdecimal() else None
        if number == 0 and key != "seed":
            raise ValueError(f"{name!r}: {key} is 0, want at least 1")
        arguments[key] = value if number is None else number
    return arguments


def _built(name: str, factory: Callable[..., Step], arguments: dict[str, Any]) -> Step:
    known = inspect.signature(factory).parameters
    for key, value in arguments.items():
        if key not in known:
            raise ValueError(f"{name!r} has no argument {key!r}; there are {', '.join(known)}")
        if type(value) is not type(known[key].default):
            raise ValueError(f"{name!r}: {key} is {value!r}, want a {type(known[key].default).__name__}")
    return factory(**arguments)


def _from_function(name: str, module_name: str, function_name: str) -> Step:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if module_name.endswith(".py"):
            raise ValueError(f"{name!r} names a file; write {module_name[:-3]}:{function_name}") from error
        raise ValueError(f"cannot import {module_name!r} of {name!r}: {error}; is it on PYTHONPATH?") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise ValueError(f"module {module_name!r} has no function {function_name!r}")
    try:
        step = factory()
    except TypeError as error:
        raise ValueError(f"calling {name!r} without arguments failed: {error}") from error
    if not isinstance(step, Step):
        raise ValueError(f"{name!r} returned a {type(step).__name__}, want a gst.programs.TrainingStep or Step")
    return step
