"""Canonical pragmas of HLSyn designs: settings that the tool treats alike become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.loop_tree import Kernel, Loop
from gst.util.untrusted import shown

MODES = ("", "off", "flatten")
Point = Mapping[str, int | str]


class Setting(NamedTuple):
    """Effective pragmas of one loop.

    Args:
        parallel: copies of the body; the trip count if the loop is unrolled fully.
        tile: iterations of the inner loop of a split; 1 without a split.
        is_pipelined: pipelined, with every loop inside it unrolled fully.
        is_unrolled: no loop remains.
    """

    parallel: int = 1
    tile: int = 1
    is_pipelined: bool = False
    is_unrolled: bool = False


def canonical(kernel: Kernel, point: Point) -> dict[str, Setting]:
    """The effective pragmas of every loop, by loop variable.

    A tile equal to the trip count is no split. `flatten` unrolls every loop inside. A loop whose `''` stands on
    loops that are all unrolled is flattened; any other `''` does nothing, as `off`. Pragmas of a loop that is unrolled
    fully, or stands in a flattened one, do nothing else.

    Examples:
        >>> from experiments.reproductions.hlsyn.source.functions import parse_kernel
        >>> kernel = parse_kernel('''
        ... void kernel(double a[8][4]) {
        ...   #pragma ACCEL PIPELINE auto{__PIPE__L0}
        ...   for (int i = 0; i < 8; i++) {
        ...     #pragma ACCEL PARALLEL FACTOR=auto{__PARA__L1}
        ...     for (int j = 0; j < 4; j++) { a[i][j] = 0; }
        ...   }
        ... }''')
        >>> one = canonical(kernel, {"__PIPE__L0": "", "__PARA__L1": 4})
        >>> one == canonical(kernel, {"__PIPE__L0": "flatten", "__PARA__L1": 2})
        True

    Args:
        point: value of each pragma, `{"__PARA__L0": 4, "__PIPE__L0": "flatten"}`.

    Raises:
        ValueError: a pragma names no place of the kernel, or its value is impossible.
    """
    _check(kernel, point)
    settings: dict[str, Setting] = {}

    def visit(loop: Loop, is_inside_flattened: bool) -> None:
        whole = max(int(-(-loop.trip_count // 1)), 1)
        parallel = int(point.get(f"__PARA__{loop.place}", 1)) if loop.place else 1
        tile = int(point.get(f"__TILE__{loop.place}", 1)) if loop.place else 1
        inner = [each for each in loop.body if isinstance(each, Loop)]
        is_fixed = all(each.is_exact for top in inner for each in top.walk())
        mode = point.get(f"__PIPE__{loop.place}", "off") if loop.place else "off"
        is_flattened = mode == "flatten" and is_fixed
        is_whole = parallel >= whole and loop.is_exact
        for each in inner:
            visit(each, is_inside_flattened or is_flattened)
        innermost = all(settings[each.variable].is_unrolled for top in inner for each in top.walk())
        if is_inside_flattened or (is_whole and innermost):
            settings[loop.variable] = Setting(whole, 1, False, True)
            return
        settings[loop.variable] = Setting(
            min(parallel, whole), 1 if is_whole or tile >= whole else tile, innermost, False
        )

    for item in kernel.body:
        if isinstance(item, Loop):
            visit(item, False)
    return settings


def _check(kernel: Kernel, point: Point) -> None:
    names = {f"__{kind}__{loop.place}" for loop in kernel.loops() for kind in loop.pragmas}
    for name, value in point.items():
        if name not in names:
            raise ValueError(f"{shown(name)} is no pragma of {kernel.name}; there are {', '.join(sorted(names))}")
        if name.startswith("__PIPE__"):
            if value not in MODES:
                raise ValueError(f"{name} is {shown(value)}; want '', 'off' or 'flatten'")
        elif type(value) is not int or not 1 <= value <= 10**6:
            raise ValueError(f"{name} is {shown(value)}; want a whole number from 1 on")
