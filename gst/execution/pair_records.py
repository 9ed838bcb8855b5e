"""Records of the shares that operations take of an accelerator, and of pairs of them that ran there at once
(`gst.execution.pairs`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

Parts = tuple[float, float, float]
"""What an operation that runs alone takes of its accelerator: of the threads that this holds at once, of the rate of
its memory, and of its rate of matrix products. 1 is all of it; what was estimated may be more."""


@dataclass(frozen=True)
class Pair:
    """Two operations, each called several times on a stream of its own.

    Args:
        parts: shares of the accelerator that each takes.
        alone_us: time of the calls of each alone.
        both_us: time of the calls of both at once.
    """

    parts: tuple[Parts, Parts]
    alone_us: tuple[float, float]
    both_us: float


@dataclass(frozen=True)
class Pairs:
    """One accelerator, the demands of a program's operations on it, and pairs of them that were timed there.

    Args:
        device: its name in PyTorch, `cuda:0`.
        gb_per_s: rate of its memory.
        gflops: its rate of matrix products.
        threads: share of its threads that each node wants; 0 if unknown.
        flops: floating-point operations of each node.
        pairs: timed pairs.
    """

    device: str
    gb_per_s: float
    gflops: float
    threads: tuple[float, ...]
    flops: tuple[float, ...]
    pairs: tuple[Pair, ...]

    def parts(
        self, times_us: Float64[np.ndarray, " nodes"], traffic_bytes: Float64[np.ndarray, " nodes"]
    ) -> Float64[np.ndarray, "nodes 3"]:
        """Return `Parts` of each node.

        Args:
            times_us: of each node alone; nodes that take 0 or an infinite time have no parts.
            traffic_bytes: bytes that each node reads and writes.

        Examples:
            >>> pairs = Pairs("cuda:0", 100.0, 1000.0, (0.5,), (4e6,), ())
            >>> pairs.parts(np.array([10.0]), np.array([2e5])).tolist()  # 20 GB/s, 400 GFLOP/s
            [[0.5, 0.2, 0.4]]
        """
        runs = np.isfinite(times_us) & (times_us > 0)
        kilo_us = 1e3 * np.where(runs, times_us, 1.0)  # bytes over thousands of microseconds are GB/s
        peaks = (self.gb_per_s, self.gflops)
        rates = [
            amount / kilo_us / peak if peak > 0 else np.zeros(len(runs))
            for amount, peak in zip((traffic_bytes, np.array(self.flops)), peaks, strict=True)
        ]
        return np.stack([np.array(self.threads), *rates], axis=1) * runs[:, None]

    def contracted(self, node_of: Int64[np.ndarray, " nodes"], origin: Int64[np.ndarray, " new_nodes"]) -> Pairs:
        """Return pairs for groups of nodes that become one: it wants the threads of its largest member, and all
        members' FLOPs.

        Args:
            node_of: for each node the new one that computes it.
            origin: for each new node one that it stands for.

        Examples:
            >>> pairs = Pairs("cuda:0", 100.0, 1000.0, (0.5, 0.1, 0.2), (4.0, 2.0, 1.0), ())
            >>> made = pairs.contracted(np.array([0, 0, 1]), np.array([0, 2]))
            >>> made.threads, made.flops
            ((0.5, 0.2), (6.0, 1.0))
        """
        threads = np.array(self.threads)[origin]
        np.maximum.at(threads, node_of, np.array(self.threads))
        flops = np.bincount(node_of, np.array(self.flops), len(origin))
        return replace(self, threads=tuple(threads.tolist()), flops=tuple(flops.tolist()))

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; `from_dict` reads it."""
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Pairs:
        """Read a record of `to_dict`, with lists for tuples as JSON has them.

        Examples:
            >>> pair = Pair(((0.5, 0.2, 0.4), (1.0, 0.1, 0.0)), (9.0, 10.0), 11.0)
            >>> pairs = Pairs("cuda:0", 100.0, 1000.0, (0.5,), (4e6,), (pair,))
            >>> Pairs.from_dict(pairs.to_dict()) == pairs
            True
        """
        pairs = []
        for each in record["pairs"]:
            one, other = map(tuple, each["parts"])
            pairs.append(Pair((one, other), tuple(each["alone_us"]), each["both_us"]))
        tuples = {"threads": tuple(record["threads"]), "flops": tuple(record["flops"]), "pairs": tuple(pairs)}
        return Pairs(**(record | tuples))
