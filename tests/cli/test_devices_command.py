"""Tables of `gst devices`."""

from __future__ import annotations

import pytest
from rich.console import Console

from gst.cli.devices import _link_table
from gst.machine.rates import CopyRates, Link, Rates


@pytest.mark.parametrize("pinned", [None, 9.0])
def test_links_have_no_columns_without_a_value_and_fit_a_terminal(pinned: float | None) -> None:
    copies = CopyRates(1.5, 7.0, None, pinned)
    pairs = [("cpu:0", "cpu:0"), ("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")]
    table = _link_table(Rates({}, (), tuple(Link(*pair, copies) for pair in pairs), 0.0, ""))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    text = capture.get()
    assert ("pinned" in text) == (pinned is not None) and all(word in text for word in ("pairs", "copy", "7"))
    assert pinned is not None or "cpu to another cpu" in text
