"""The pages of the documentation as Markdown reads them: their fences, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

OUTPUT = "Output"
"""The title of a fence that shows what the one before it prints."""

EXCUSE = re.compile(r"<!--\s*not executed:\s*(.+?)\s*-->\s*\Z", re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
TARGET = re.compile(r'(?:href|src)="([^"]+)"')


@dataclass(frozen=True)
class Fence:
    """A block between two lines of backquotes.

    Args:
        language: the first word after the backquotes; '' if there is none.
        title: the file that it is the content of, or `OUTPUT`; '' if there is none.
        source: what stands between.
        line: of the page, counted from 1, where `source` begins.
        excuse: the reason of a comment `<!-- not executed: reason -->` just above; '' if there is none.
    """

    language: str
    title: str
    source: str
    line: int
    excuse: str

    @property
    def runs(self) -> bool:
        """Is it code that a reader would run?"""
        return self.language in ("python", "bash") and not self.excuse


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tokens(self) -> list[Token]:
        return MarkdownIt("commonmark").enable("table").parse(self.text)

    @property
    def fences(self) -> list[Fence]:
        found = []
        for before, token in zip([None, *self.tokens], self.tokens, strict=False):
            if token.type != "fence" or token.map is None:
                continue
            excuse = EXCUSE.search(before.content) if before is not None and before.type == "html_block" else None
            title = TITLE.search(token.info)
            found.append(
                Fence(
                    token.info.split(maxsplit=1)[0] if token.info else "", title[1] if title else "", token.content,
                    token.map[0] + 2, excuse[1] if excuse else "",
                )
            )  # fmt: skip
        return found

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures that are not addresses of the web, in Markdown and in HTML."""
        inline = [token for each in self.tokens if each.children for token in each.children]
        targets = [str(value) for token in inline for value in (token.attrGet("href"), token.attrGet("src")) if value]
        for token in [*self.tokens, *inline]:
            if token.type in ("html_block", "html_inline"):
                targets += TARGET.findall(token.content)
        return [target for target in targets if not re.match(r"[a-z]+:", target)]

    @property
    def anchors(self) -> set[str]:
        """What a heading is called in an address, by GitHub and by Python-Markdown, which differ in runs of spaces."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        titles = [body.content for head, body in pairs if head.type == "heading_open"]
        words = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
        return {re.sub(r"\s", "-", each) for each in words} | {re.sub(r"[-\s]+", "-", each) for each in words}
