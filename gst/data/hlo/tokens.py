"""HLO text, cut into tokens."""

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
    """The tokens of a text, one after the other: `token` is the next one, `END` behind the last. Comments and spaces
    are left out; the end of a line is a token, as it ends an instruction.

    Raises:
        ValueError: a string or a comment does not end; as every message from here, it names the line.
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
        """The next token, even if it is the end of a line."""
        token = self.token
        self._advance()
        self.line += token == "\n"
        return token

    def skip_lines(self) -> None:
        while self.token == "\n":
            self.take()

    def skip_line(self) -> str:
        """Go to the end of the line; returns its last token."""
        last = END
        while self.token not in ("\n", END):
            last = self.take()
        return last

    def found(self) -> str:
        """The next token, for a message."""
        return {END: "the end of the text", "\n": "the end of the line"}.get(self.token, repr(self.token[:40]))

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.error(f"got {self.found()}, want {token!r}")
        self.take()

    def word(self) -> str:
        """A name or a number, without the % that may stand before a name."""
        if self.token in (*_OPEN, *_CLOSE, ",", "=", "\n", END):
            raise self.error(f"got {self.found()}, want a name")
        return self.take().removeprefix("%")

    def group(self, keep: bool = True) -> list[str]:
        """The tokens within the pair of brackets that is opened here, none if they are not kept; go behind the pair."""
        opened = self.take()
        tokens: list[str] = []
        depth = 1
        while depth:
            token = self.take()
            if token == END:
                raise self.error(f"the text ends within {opened}")
            depth += (token in _OPEN) - (token in _CLOSE)
            if keep and depth and token != "\n":
                tokens.append(token)
        return tokens

    def value(self, keep: bool) -> list[str]:
        """The tokens of an attribute's value, without the outer brackets, up to a comma or the end of the instruction;
        none if they are not kept."""
        tokens: list[str] = []
        while self.token not in (",", "\n", END, *_CLOSE):
            part = self.group(keep) if self.token in _OPEN else [self.take()]
            tokens += part if keep else []
        return tokens
