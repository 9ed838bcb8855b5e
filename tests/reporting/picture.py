"""docs/report.png: head, first plans and graph of a report, as `python tests/reporting/picture.py REPORT PNG`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Chromium, Tab
from PIL import Image

LEFT_OUT = (
    "#plans .pair, #timeline, main > .pair, #setting, footer, figure details, #graph .note-line, #inside figcaption"
)


def picture(report: Path, png: Path) -> None:
    """Takes the picture of a report of `gst demo` or `gst place`, without most of its sections."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Chromium(Path(profile))
        tab = Tab(browser, report, width=1120)
        tab.value(f"document.querySelectorAll('{LEFT_OUT}').forEach(part => part.remove())")
        tab.value("document.querySelectorAll('tbody tr:nth-child(n+7)').forEach(row => row.remove())")
        tab.picture(png)
        browser.close()
    Image.open(png).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        png, optimize=True
    )


if __name__ == "__main__":
    picture(Path(sys.argv[1]), Path(sys.argv[2]))
