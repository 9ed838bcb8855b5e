"""Pages of reports as an HTML parser reads them, and what must hold of every one of them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

VOID = {"meta", "br", "img", "link", "hr", "input"}

Attributes = dict[str, str | None]


class Html(HTMLParser):
    """Fails on a tag that closes what is not open; collects the tags, attributes and text it saw."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, Attributes, tuple[str, ...]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> repeats an attribute: {attrs}"
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.words.append((self.open[-1], data))

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _, _ in self.elements]

    @property
    def attributes(self) -> list[tuple[str, str | None]]:
        return [pair for _, attributes, _ in self.elements for pair in attributes.items()]

    @property
    def text(self) -> str:
        return " ".join(words for tag, words in self.words if tag not in ("style", "script"))

    def all(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


def faults(page: str) -> list[str]:
    """Return the faults of a page for readers who do not see it, use no mouse, or have no network."""
    html, wrong = Html(page), []
    if not html.all("html")[0].get("lang"):
        wrong.append("no language")
    levels = [int(tag[1]) for tag in html.tags if re.fullmatch("h[1-6]", tag)]
    if levels.count(1) != 1 or levels[0] != 1:
        wrong.append(f"headings begin {levels[:3]}, with {levels.count(1)} h1")
    wrong += [f"h{low} to h{high}" for low, high in pairwise(levels) if high > low + 1]
    ids = [value for name, value in html.attributes if name == "id"]
    wrong += [f"id {name} twice" for name in {each for each in ids if ids.count(each) > 1}]
    for name, value in html.attributes:
        target = str(value)
        if name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster") and not target.startswith("#"):
            wrong.append(f"{name} leads to {target}")
        if name in ("href", "aria-labelledby") and target.removeprefix("#") not in ids:
            wrong.append(f"{name} to {target}, which is not there")
        if name.startswith("on"):
            wrong.append(f"an attribute {name}")
        wrong += [f"{name} uses {each}" for each in re.findall(r"url\((?!#)[^)]*\)?", target)]
    wrong += _of_elements(html)
    if re.search(r"https?:|@import|url\((?!#)", page):
        wrong.append("something from outside is named")
    return wrong


def _of_elements(html: Html) -> list[str]:
    wrong = []
    for tag, attributes, around in html.elements:
        name = attributes.get("aria-label")
        if tag == "svg" and "chart" in str(attributes.get("class")):
            if attributes.get("role") not in ("img", "group") or not name:
                wrong.append("a drawing without role or name")
        elif tag == "svg" and attributes.get("aria-hidden") != "true":
            wrong.append("a mark that is neither named nor hidden")
        if (tag == "a" and "svg" in around and not name) or (tag == "img" and not attributes.get("alt")):
            wrong.append(f"<{tag}> without a name")
        if tag == "th" and attributes.get("scope") not in ("row", "col"):
            wrong.append("a heading of a table without scope")
        if attributes.get("tabindex", "0") != "0":
            wrong.append(f"tabindex {attributes['tabindex']}")
        if attributes.get("class") == "scroll" and not (name and attributes.get("tabindex") == "0"):
            wrong.append("a box that scrolls and cannot be reached by keyboard, or has no name")
    charts = sum("chart" in str(attributes.get("class")) for attributes in html.all("svg"))
    if html.tags.count("desc") != charts:
        wrong.append(f"{html.tags.count('desc')} descriptions of {charts} drawings")
    return wrong


def colours(dark: bool) -> dict[str, str]:
    """The hexadecimal colours of `report.css` by name."""
    css = resources.files("gst.reporting").joinpath("report.css").read_text(encoding="utf-8")
    light, other = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    found = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))
    return found | dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", other)) if dark else found


def contrast(one: str, other: str) -> float:
    """Of two hexadecimal colours, as the Web Content Accessibility Guidelines 2 define it: from 1 to 21."""
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def blend(front: str, back: str, share: float) -> str:
    """`share` of one colour over another."""
    pairs = ((int(front[at : at + 2], 16), int(back[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in pairs)


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
