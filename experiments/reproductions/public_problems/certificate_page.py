"""The part of a placement's page that says how good its plan is at best, and the memory that it takes."""

from __future__ import annotations

import math

from gst.reporting.charts import brief, escape, number
from gst.reporting.headline import undercut
from gst.reporting.page import Record, mapping, rows, section

BY = {
    "checker": "proved by the checker for every run that the events allow, with inputs and constants",
    "simulator": "in the simulated run",
    "file": "by the sizes that the file states of its operations",
}
COUNTED = {
    "longest path": "neither transfers nor memory limits",
    "chains and work": "transfers and no memory limits",
}
"""What a bound takes into account beside the operations, by the method that proved it, where that is not everything."""


def certificate(record: Record) -> str:
    """Bound, gap and method in a sentence, and a table of memories; nothing where a record has no certificate.

    Examples:
        >>> certificate({})
        ''
    """
    certified = mapping(record.get("certificate"))
    bound, took, gap = (number(certified.get(key)) for key in ("lower_bound", "plan", "gap"))
    if math.isnan(bound) or math.isnan(took):
        return ""
    unit = certified.get("unit") or "ms"
    told = "No plan takes less" if certified.get("proved") else f"At most {brief(100 * gap)} % above the least"
    if math.isnan(gap) and not certified.get("proved"):
        told = "How far it is above the least is not known"
    counted = COUNTED.get(str(certified.get("bound_by")), "transfers and memory limits")
    less, others = undercut(record), "no plan without fusion" if certified.get("is_fused") else "no plan"
    words = (
        f"{told}: by the costs that plans were made from, this one takes {brief(took)} {unit}, and {others} less than "
        f"{brief(bound)} {unit} ({certified.get('bound_by')}, proved in {brief(certified.get('seconds'))} s). "
        f"The bound counts {counted}; operations are taken one by one. "
        f"{less}{' ' if less else ''}"
        f"What the plan takes of each memory at most is {BY.get(str(certified.get('memory_by')), 'as recorded')}."
    )
    peaks, limits = mapping(certified.get("peak_bytes")), mapping(certified.get("limit_bytes"))
    lines = [
        (name, brief(number(size) / 2**20), "none" if limits.get(name) is None else brief(number(limits[name]) / 2**20))
        for name, size in peaks.items()
    ]
    table = rows("Memory", ("memory", "most, MiB", "limit, MiB"), lines) if lines else ""
    return section("certificate", "Certificate", f"<p>{escape(words, 1000)}</p>", table)
