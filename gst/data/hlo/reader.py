"""Files of XLA programs, told apart by what is in them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gst.data.hlo.messages import HloModule, ModuleTuningData
from gst.data.hlo.module_graph import module_graph
from gst.data.hlo.text import parse_module
from gst.data.hlo.tuning import configurations, configured_nodes, tuned_nodes
from gst.data.merging import merge_repeats
from gst.graphs.graph import Graph

WAY_OUT = "give HLO as jax.jit(f).lower(x).compile().as_text(), an XLA dump or a TpuGraphs .pb file has it"


def read_hlo(path: Path | str, merge: bool = True) -> Graph:
    """Read an XLA program: HLO text, or the protobuf of an `HloModuleProto`, an `HloProto` or a TpuGraphs
    `ModuleTuningData`.

    Nodes, opcodes, edges and the 140 node features are those that TpuGraphs publishes of the same module
    (Phothilimthana et al. 2023). Tuning data bring their configurable nodes, configurations and runtimes in ns; runs
    that failed are left out. Another module has one configuration without a runtime: -1, the choice of the compiler,
    at every convolution, dot and reshape.

    The text of a compiled module lists its instructions in the order of its schedule, its protobuf in another: the
    two give the same graph but for the numbering of nodes.

    Args:
        merge: configurations that were measured again become one, see `tpugraphs.read`.

    Raises:
        ValueError: there is no such file, it is no XLA program, or it is damaged; the message says where.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        graph = _graph(*_decoded(path.read_bytes()), path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return merge_repeats(graph) if merge and graph.num_configs > 1 else graph


def _decoded(content: bytes) -> tuple[Any, Any]:
    """An `HloModule` with instructions, and the `ModuleTuningData` around it, empty where there is none."""
    if content[:4096].lstrip().startswith(b"HloModule"):
        return parse_module(content.decode(errors="replace")), ModuleTuningData()
    if content and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in content[:256]):
        raise ValueError(f"text that does not begin with HloModule (StableHLO?) is not read; {WAY_OUT}")
    with suppress(DecodeError):
        tuning = ModuleTuningData.FromString(content)
        if _has_instructions(tuning.module):
            return tuning.module, tuning
    with suppress(DecodeError):
        module = HloModule.FromString(content)
        if _has_instructions(module):
            return module, ModuleTuningData()
    raise ValueError(f"no XLA program is in it, or a damaged one; {WAY_OUT}")


def _has_instructions(module: Any) -> bool:
    return any(computation.instructions for computation in module.computations)


def _graph(module: Any, tuning: Any, name: str) -> Graph:
    graph = module_graph(module)
    tuned = bool(tuning.config_index_to_node)
    config_nodes = tuned_nodes(tuning, len(graph.opcodes)) if tuned else configured_nodes(graph.opcodes)
    config_features, targets = configurations(tuning if tuned else ModuleTuningData(), len(config_nodes))
    return Graph(graph.node_features, graph.edges, graph.opcodes, config_nodes, config_features, targets, name=name)
