"""Whole numbers that are affine in loop variables: sums, products and bounds of them. None stands for a number that
is not affine, or not known."""

from __future__ import annotations

from collections import Counter

Affine = dict[str, int]  # variable -> coefficient; "" -> constant


def combined(sign: str, left: Affine | None, right: Affine | None) -> Affine | None:
    """The result of a C operation; None where it is not affine.

    Examples:
        >>> combined("+", {"": 1, "i": 2}, {"": 3, "i": -2})
        {'': 4}
        >>> combined("*", {"": 1, "i": 2}, {"": 3})
        {'': 3, 'i': 6}
    """
    if left is None or right is None:
        return None
    if sign in ("+", "-"):
        total = Counter(left)
        for name, coefficient in right.items():
            total[name] += coefficient if sign == "+" else -coefficient
        return {name: coefficient for name, coefficient in total.items() if coefficient or not name}
    if sign == "*":
        scale, other = (left, right) if set(left) <= {""} else (right, left)
        if set(scale) <= {""}:
            return _bounded({name: coefficient * scale.get("", 0) for name, coefficient in other.items()})
    if sign == "<<" and set(right) <= {""} and 0 <= right.get("", 0) < 32:
        return _bounded({name: coefficient << right.get("", 0) for name, coefficient in left.items()})
    if sign == "/" and set(left) | set(right) <= {""} and right.get("", 0):
        return {"": left.get("", 0) // right[""]}
    return None


def _bounded(affine: Affine) -> Affine | None:
    """None where a number is larger than C has integers."""
    return None if any(abs(each) > 2**63 for each in affine.values()) else affine


def middle(affine: Affine | None, middles: dict[str, float]) -> float | None:
    """The mean; None if that of a variable is unknown."""
    if affine is None or any(name and name not in middles for name in affine):
        return None
    terms = (coefficient * (middles[name] if name else 1) for name, coefficient in affine.items())
    return float(sum(terms))


def highest(affine: Affine | None, ranges: dict[str, tuple[float, float]]) -> float | None:
    """The greatest value; None if it is unknown."""
    if affine is None or any(name and name not in ranges for name in affine):
        return None
    ends = (
        max(coefficient * end for end in ranges[name]) if name else coefficient for name, coefficient in affine.items()
    )
    return float(sum(ends))
