"""Arguments of encoders, also of those behind wrappers that hand their arguments on (`*args, **kwargs`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter
from typing import Any

from torch import nn

CATCHING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters_of(encoder: Callable[..., Any]) -> list[Parameter]:
    """Return the arguments of `encoder`. Those of the only module or function behind `*args` or `**kwargs` take their
    place; `*args` and `**kwargs` themselves remain where there is none, or more than one.

    Examples:
        >>> from torch.optim.swa_utils import AveragedModel
        >>> [parameter.name for parameter in parameters_of(AveragedModel(nn.Bilinear(2, 2, 3)))]
        ['input1', 'input2']
    """
    if isinstance(encoder, partial):
        rest = parameters_of(encoder.func)[len(encoder.args) :]
        return [each for each in rest if each.name not in encoder.keywords]
    own = _own(encoder)
    catching = {each.kind for each in own} & set(CATCHING)
    inner = [parameters_of(each) for each in _behind(encoder)] if catching else []
    if len(inner) != 1 or not _takes_graphs(inner[0]):
        return own
    named = [each for each in own if each.kind not in CATCHING]
    more = [each for each in inner[0] if each.name not in {one.name for one in named}]
    if Parameter.VAR_POSITIONAL not in catching:
        more = [
            each.replace(kind=Parameter.KEYWORD_ONLY) if each.kind not in CATCHING else each
            for each in more if each.kind is not each.POSITIONAL_ONLY
        ]  # fmt: skip
    elif Parameter.VAR_KEYWORD not in catching:
        hidden = (*CATCHING, Parameter.KEYWORD_ONLY)
        more = [each.replace(kind=Parameter.POSITIONAL_ONLY) for each in more if each.kind not in hidden]
    return named + more


def modules_of(encoder: object) -> list[nn.Module]:
    """Return the modules that `encoder` is, or that its closure or object holds."""
    if isinstance(encoder, nn.Module):
        return [encoder]
    return [each for each in _references(encoder) if isinstance(each, nn.Module)]


def _own(encoder: Callable[..., Any]) -> list[Parameter]:
    if names := getattr(getattr(encoder, "signature", None), "param_dict", {}):  # PyG's Sequential
        return [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    called = encoder.forward if isinstance(encoder, nn.Module) else encoder
    if schema := getattr(called, "schema", None):  # torch.jit.trace
        return [
            Parameter(
                each.name, Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else Parameter.empty,
            )
            for each in schema.arguments[1:]
        ]  # fmt: skip
    return list(inspect.signature(called).parameters.values())


def _takes_graphs(parameters: list[Parameter]) -> bool:
    required = [each for each in parameters if each.default is each.empty and each.kind not in CATCHING]
    return len(required) > 1 or any(each.name in ("x", "edge_index", "data", "batch") for each in required)


def _behind(encoder: object) -> list[Any]:
    """Return the modules, else the functions, that may get the arguments of a wrapper."""
    if isinstance(encoder, nn.Module):
        return list({id(each): each for each in encoder.children()}.values())
    references = list({id(each): each for each in _references(encoder)}.values())
    return modules if (modules := [each for each in references if isinstance(each, nn.Module)]) else references


def _references(encoder: object) -> Iterator[Any]:
    """Yield the callables of a closure, of the globals that a function names, or of the attributes of an object."""
    if isinstance(encoder, partial):
        values: list[Any] = [encoder.func, *encoder.args, *encoder.keywords.values()]
    elif inspect.isfunction(encoder):
        variables = inspect.getclosurevars(encoder)
        values = [*variables.nonlocals.values(), *variables.globals.values()]
    elif inspect.ismethod(encoder):
        owner = encoder.__self__
        values = [owner] if isinstance(owner, nn.Module) else list(vars(owner).values())
    else:
        values = list(getattr(encoder, "__dict__", {}).values())
    yield from (each for each in values if callable(each) and not inspect.isclass(each))
