"""Records of pairs of operations that ran at once on one accelerator; `gst.devices.execute.pairs` times them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Pair:
    """Two operations, each called several times on a stream of its own.

    Args:
        kilobytes: of the result of each.
        gb_per_s: that each reads and writes while it runs alone.
        alone_us: what the calls of each take alone.
        both_us: what the calls of both take at once.
    """

    kilobytes: tuple[float, float]
    gb_per_s: tuple[float, float]
    alone_us: tuple[float, float]
    both_us: float


@dataclass(frozen=True)
class Pairs:
    """Pairs of operations of one program on one accelerator.

    Args:
        threads: number of threads that the accelerator can run at once; None if PyTorch does not report it.
        peak_gb_per_s: rate of the accelerator's memory, GB/s: that of element-wise operations where this machine was
            measured (`gst devices --measure`), otherwise one that few operations of the program exceed.
        pairs: that were timed.
    """

    threads: int | None
    peak_gb_per_s: float
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Pairs:
        """What `to_dict` gave, with lists for tuples as JSON has them.

        Examples:
            >>> pairs = Pairs(None, 900.0, (Pair((4.0, 8.0), (1.0, 2.0), (9.0, 10.0), 11.0),))
            >>> Pairs.from_dict(pairs.to_dict()) == pairs
            True
        """
        pairs = tuple(
            Pair(tuple(each["kilobytes"]), tuple(each["gb_per_s"]), tuple(each["alone_us"]), each["both_us"])
            for each in record["pairs"]
        )
        return Pairs(record["threads"], record["peak_gb_per_s"], pairs)


def pairs_record(pairs: Pairs | None) -> dict[str, Any]:
    """Pairs as an entry of a record for JSON, which has none where there are none; `pairs_of` reads it."""
    return {} if pairs is None else {"pairs": pairs.to_dict()}


def pairs_of(record: Mapping[str, Any]) -> Pairs | None:
    """Pairs of a record in which `pairs_record` is an entry; None where there are none, or it is older than they are.

    Examples:
        >>> pairs = Pairs(None, 900.0, ())
        >>> pairs_of({"times_us": [], **pairs_record(pairs)}) == pairs, pairs_of({"times_us": [], **pairs_record(None)})
        (True, None)
    """
    return Pairs.from_dict(record["pairs"]) if "pairs" in record else None
