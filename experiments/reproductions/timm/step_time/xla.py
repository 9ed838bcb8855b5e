"""XLA programs (HLO, StableHLO) as operators that kernels are made of, with the fusions of a compiled module.

A compiled module has one kernel for each instruction of its entry and of the loops in it; a fusion is one kernel that
reads and writes what crosses its border. In a module that is not compiled yet, operations are grouped as TorchInductor
groups them (`step_time.kernels`), which keeps products apart from what surrounds them, as XLA does on GPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.graphnet.reader import Operation
from experiments.reproductions.timm.step_time.captured import peak_memory
from experiments.reproductions.timm.step_time.kernels import Kernels, kernels_of, kernels_of_groups
from experiments.reproductions.timm.step_time.xla_counts import Counts, counts_of, entry_of
from experiments.reproductions.timm.step_time.xla_walk import Walk, leaves
from gst.data.hlo.modules import read_tuning
from gst.util.untrusted import plain

MOST_KERNELS = 1_000_000


@dataclass(frozen=True)
class XlaProgram:
    """An XLA program as operators.

    Args:
        groups: operators of each kernel of a compiled module; of one that is not, one group for each loop body.
        repeats: how often each group runs.
        is_compiled: its fusions are those of XLA.
        counts: floating-point operations as XLA counts them.
        batch: first dimension of the largest input that is no weight; 1 without any.
        side: side of the images among its inputs, 0 without any.
        is_training: True if it returns arrays of the shapes of most of its weights, as gradients have.
        unknown_loops: loops whose trip count the module does not tell; they count once.
    """

    name: str
    groups: tuple[tuple[Operation, ...], ...]
    repeats: tuple[int, ...]
    is_compiled: bool
    counts: Counts
    batch: int
    side: int
    is_training: bool
    parameter_bytes: float
    unknown_loops: int

    @property
    def operations(self) -> list[Operation]:
        """All operators, each loop once."""
        return [operation for group in self.groups for operation in group]

    @property
    def is_half(self) -> bool:
        """True if most of its products are of 16 bits."""
        products = [each for each in self.operations if each.kind in ("linear", "matmul", "conv2d", "conv1d", "conv3d")]
        return 2 * sum(each.reads[0].dtype.itemsize == 2 for each in products) > len(products)

    def activation_bytes(self) -> float:
        """Return the peak bytes of values other than weights, each freed after its last use; none within a fusion.

        It is an upper bound if the module is not compiled.
        """
        owners = {value.name: value for operation in self.operations for value in (*operation.writes, *operation.reads)
                  if value.name == value.storage}  # fmt: skip
        whole = [
            [operation._replace(reads=tuple(owners.get(value.storage, value) for value in operation.reads),
                                writes=tuple(owners.get(value.storage, value) for value in operation.writes))
             for operation in group] for group in self.groups
        ]  # fmt: skip
        readers: dict[int, set[int]] = {}
        for place, group in enumerate(whole):
            for value in (value for operation in group for value in operation.reads):
                readers.setdefault(value.name, set()).add(place)
        steps: list[Operation] = []
        for place, group in enumerate(whole):
            if not self.is_compiled:
                steps += group
                continue
            made = {value.name: value for operation in group for value in operation.writes}
            reads = {value.name: value for operation in group for value in operation.reads if value.name not in made}
            writes = [value for name, value in made.items() if readers.get(name, {-1}) != {place}]
            steps.append(Operation("fusion", tuple(reads.values()), tuple(writes), {}, False))
        return peak_memory(steps)[1]

    def kernels(self) -> Kernels:
        """Return the kernels that run it; raise ValueError if there are none, or more than `MOST_KERNELS`."""
        busy = [place for place, group in enumerate(self.groups) if not all(each.is_view for each in group)]
        if not busy:
            raise ValueError(f"{self.name} has no operation that moves data")
        repeats = np.array([self.repeats[place] for place in busy], np.float64)
        if self.is_compiled:
            parts = [kernels_of_groups([self.groups[place] for place in busy])]
        else:
            parts = [kernels_of(self.groups[place], "fp32", True) for place in busy]
            repeats = np.repeat(repeats, [len(each.kind) for each in parts])
        if float(repeats.sum()) > MOST_KERNELS:
            raise ValueError(f"{self.name} runs {repeats.sum():.0f} kernels; at most {MOST_KERNELS} are estimated")
        return Kernels(
            *(np.repeat(np.concatenate(part), repeats.astype(np.int64), 0) for part in zip(*parts, strict=True))
        )


def read_xla(path: Path | str) -> XlaProgram:
    """Read the operators of an XLA program from a file that `gst.data.hlo.modules.read_tuning` reads.

    Raises:
        ValueError: the file holds none, or an instruction contradicts its operands; the message names it.

    Examples:
        >>> lines = ["HloModule m", "ENTRY e {", "x = f32[8,3] parameter(0)", "y = f32[3,4] parameter(1)"]
        >>> lines += ["ROOT z = f32[8,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "}"]
        >>> _ = Path("dot.hlo").write_text("\\n".join(lines))
        >>> program = read_xla("dot.hlo")
        >>> program.batch, [each.kind for each in program.operations], program.counts.flops
        (8, ['linear'], 192.0)
    """
    module = read_tuning(path)[0]
    try:
        return xla_program(module)
    except (ValueError, LookupError, RecursionError, OverflowError) as error:
        problem = plain(error) if isinstance(error, ValueError) else "its instructions contradict each other"
        raise ValueError(f"{path}: {problem}") from error


def xla_program(module: Any) -> XlaProgram:
    """Return the operators of an HLO module of `gst.data.hlo`; see `read_xla`."""
    entry = entry_of(module)
    is_compiled = any(each.opcode == "fusion" for one in module.computations for each in one.instructions)
    first = Walk(module, is_compiled)
    first.run(entry)
    walk = Walk(module, is_compiled, first.likely_weights())
    results = leaves(walk.run(entry))
    inputs = {number: value for number, value in walk.inputs.items() if not value.is_parameter and value.shape}
    weights = [value.shape for value in walk.inputs.values() if value.is_parameter and len(value.shape) > 1]
    returned = Counter(weights) & Counter(value.shape for value in results)
    batch, side = 1, 0
    if inputs:
        number = max(inputs, key=lambda each: inputs[each].numel * inputs[each].dtype.itemsize)
        batch, side = walk.images.get(number, (inputs[number].shape[0], 0))
    parameters = [value for value in walk.inputs.values() if value.is_parameter]
    is_training = bool(weights) and 2 * returned.total() > len(weights)
    return XlaProgram(
        str(module.name)[:80] or "module", tuple(map(tuple, walk.groups)), tuple(walk.repeats), is_compiled,
        counts_of(module), max(batch, 1), side, is_training,
        float(sum(value.numel * value.dtype.itemsize for value in parameters)), walk.unknown_loops,
    )  # fmt: skip
