from __future__ import annotations

import pytest

from gst.process.progress import Bars


def test_one_bar_counts_through_changing_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.show("first", 0, 3)
        bar = bars._bar
        bars.show("second", 2, 3)
        assert bars._bar is bar and bar.n == 2 and bar.desc == "second: "
        bars.show("another job", 0, 5)
        assert bars._bar is not bar and bars._bar.total == 5
    assert "second" in capsys.readouterr().err
