"""Tokens of HLO text."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
      (?P<skip> [^\S\n]+ | //[^\n]* | (?s:/\*.*?\*/) )
    | \n | "[^"\\\n]*(?:\\.[^"\\\n]*)*" | [(){}\[\],=]
    | (?P<open> /\* | " )          # of a comment or a string without an end
    | [^\s(){}\[\],="]+           # a name, a number, b01f_01io->b01f, 0:10:2
    """,
    re.VERBOSE,
)
_OPEN, _CLOSE = ("(", "{", "["), (")", "}", "]")
END = ""


class Tokens:
    """Stream of the tokens of a text: `token` is the next one, `END` after the last.

    Comments and spaces are left out; the end of a line is a token, because it ends an instruction.

    Examples:
        >>> tokens = Tokens("%add = f32[3] // three")
        >>> tokens.word(), tokens.take(), tokens.word(), tokens.group(), tokens.token == END
        ('add', '=', 'f32', ['3'], True)

    Raises:
        ValueError: a string or a comment does not end; all messages name the line.
    """

    def __init__(self, text: str) -> None:
        self._matches = _TOKEN.finditer(text)
        self.line = 1
        self.token = "\n"
        self._advance()

    def _advance(self) -> None:
        for match in self._matches:
            if match.lastgroup == "open":
                raise self.error(f"{match.group()[:2]} is opened and never closed")
            if match.lastgroup == "skip":
                self.line += match.group().count("\n")
                continue
            self.token = match.group()
            return
        self.token = END

    def error(self, problem: str) -> ValueError:
        return ValueError(f"line {self.line}: {problem}; the text is damaged or not as XLA prints it")

    def take(self) -> str:
        """Return the next token, even if it is the end of a line, and go past it."""
        token = self.token
        self._advance()
        self.line += token == "\n"
        return token

    def skip_lines(self) -> None:
        while self.token == "\n":
            self.take()

    def skip_line(self) -> str:
        """Go to the end of the line and return its last token."""
        last = END
        while self.token not in ("\n", END):
            last = self.take()
        return last

    def shown(self) -> str:
        """Return the next token as text for a message."""
        return {END: "the end of the text", "\n": "the end of the line"}.get(self.token, repr(self.token[:40]))

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.error(f"got {self.shown()}, want {token!r}")
        self.take()

    def word(self) -> str:
        """Return a name or a number, without the % before a name."""
        if self.token in (*_OPEN, *_CLOSE, ",", "=", "\n", END):
            raise self.error(f"got {self.shown()}, want a name")
        return self.take().removeprefix("%")

    def group(self, keep: bool = True) -> list[str]:
        """Go past the pair of brackets that opens here and return the tokens within, none unless `keep`."""
        bracket = self.take()
        tokens: list[str] = []
        depth = 1
        while depth:
            token = self.take()
            if token == END:
                raise self.error(f"the text ends within {bracket}")
            depth += (token in _OPEN) - (token in _CLOSE)
            if keep and depth and token != "\n":
                tokens.append(token)
        return tokens

    def value(self, keep: bool) -> list[str]:
        """Go past the value of an attribute and return its tokens without outer brackets, none unless `keep`."""
        tokens: list[str] = []
        while self.token not in (",", "\n", END, *_CLOSE):
            part = self.group(keep) if self.token in _OPEN else [self.take()]
            tokens += part if keep else []
        return tokens
