"""A program as a `torch.fx` module, for compilers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from gst.programs.program import Program, Reference


def as_module(program: Program) -> fx.GraphModule:
    """A module that takes the flat inputs of a program and returns its flat outputs, as a tuple; constants are
    buffers."""
    root, graph = torch.nn.Module(), fx.Graph()
    values: dict[int, fx.Node] = {}
    for node, operation in enumerate(program.operations):
        if operation.kind == "input":
            values[node] = graph.placeholder(operation.name)
        elif operation.kind == "constant":
            root.register_buffer(f"constant_{node}", operation.constant, persistent=False)
            values[node] = graph.get_attr(f"constant_{node}")
        else:
            assert operation.target is not None
            args, kwargs = _with(operation.args, values), _with(operation.kwargs, values)
            values[node] = graph.call_function(operation.target, args, kwargs)
    graph.output(tuple(_with(each, values) for each in program.outputs))
    return fx.GraphModule(root, graph)


def _with(template: Any, values: dict[int, fx.Node]) -> Any:
    """A template of arguments with nodes of the graph for references."""
    if isinstance(template, Reference):
        return values[template.node]
    if isinstance(template, dict):
        return {key: _with(each, values) for key, each in template.items()}
    return type(template)(_with(each, values) for each in template) if isinstance(template, list | tuple) else template
