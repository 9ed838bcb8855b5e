"""Tokens of a C source after its preprocessor: macros expanded, branches of `#if` chosen, type names resolved."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gst.util.untrusted import shown

TOKEN = re.compile(
    r"(?P<skip>\s+|\\\n|//[^\n]*|/\*.*?\*/)|(?P<pragma>\#[ \t]*pragma(?:\\\n|[^\n])*)|(?P<directive>\#(?:\\\n|[^\n])*)"
    r"|(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])"
    r"|(?P<text>\"[^\"\n]*\"|'[^'\n]*')",
    re.DOTALL,
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\\\n", re.DOTALL)
DIRECTIVE = re.compile(r"\#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
DEFINITION = re.compile(r"(\w+)(\(([^()]*)\))?[ \t]*(.*)", re.DOTALL)
MOST_TOKENS = 1_000_000  # of a source with its macros expanded
SCALARS = frozenset({
    "char", "short", "int", "long", "float", "double", "signed", "unsigned", "const", "size_t", "int8_t", "int16_t",
    "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "bool", "_Bool",
})  # fmt: skip

Token = tuple[str, str, int]  # kind (a group of TOKEN), text, line


class Macro:
    """Body of `#define`, and the names of its arguments; None where it takes none."""

    def __init__(self, body: list[Token], arguments: list[str] | None) -> None:
        self.body, self.arguments = body, arguments


def tokens_of(text: str, where: str) -> list[Token]:
    """Tokens of a source; comments, directives and what `#if` leaves out are no tokens, pragmas are.

    Nothing is included. `#if` of an expression that is neither a number nor `defined(NAME)` counts as true.

    Examples:
        >>> [token for _, token, _ in tokens_of("#define N (4 * M)\\n#define M 2\\nint a[N];", "source")]
        ['int', 'a', '[', '(', '4', '*', '2', ')', ']', ';']
        >>> [token for _, token, _ in tokens_of("typedef float T; T x;", "source")][-3:]
        ['float', 'x', ';']

    Raises:
        ValueError: a character starts no token, or macros expand to more than a million tokens.
    """
    macros: dict[str, Macro] = {}
    branches: list[tuple[bool, bool]] = []  # (tokens are kept, a branch was chosen), of each `#if` that is open
    plain: list[Token] = []
    result: list[Token] = []

    def flush() -> None:
        result.extend(_expanded(plain, macros, where, len(result)))
        plain.clear()

    for kind, token, line in _raw(text, where):
        if kind == "directive":
            flush()
            _direct(token, macros, branches, where, line)
        elif all(is_kept for is_kept, _ in branches):
            plain.append((kind, token, line))
    flush()
    return _typed(result)


def _raw(text: str, where: str, line: int = 1) -> list[Token]:
    result: list[Token] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{where}, line {line}: {shown(text[position : position + 20])} is no C token")
        if match.lastgroup != "skip":
            result.append((str(match.lastgroup), match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    return result


def _direct(
    text: str, macros: dict[str, Macro], branches: list[tuple[bool, bool]], where: str, line: int
) -> None:  # fmt: skip
    """Obey one directive."""
    match = DIRECTIVE.match(COMMENT.sub(" ", text))
    word, rest = match.groups() if match else ("", "")
    is_live = all(is_kept for is_kept, _ in branches)
    if word in ("if", "ifdef", "ifndef"):
        branches.append((holds := _holds(word, rest, macros), holds))
    elif word in ("elif", "else") and branches:
        chosen = branches.pop()[1]
        holds = not chosen and (word == "else" or _holds("if", rest, macros))
        branches.append((holds, chosen or holds))
    elif word == "endif" and branches:
        branches.pop()
    elif word == "undef" and is_live:
        macros.pop(rest.strip(), None)
    elif word == "define" and is_live and (definition := DEFINITION.match(rest)):
        name, has_arguments, arguments, body = definition.groups()
        names = [each.strip() for each in arguments.split(",") if each.strip()] if has_arguments else None
        tokens = [each for each in _raw(body.replace("#", " "), where, line) if each[0] != "pragma"]
        macros[name] = Macro([(kind, token, line) for kind, token, _ in tokens], names)


def _holds(word: str, rest: str, macros: dict[str, Macro]) -> bool:
    names = re.findall(r"[A-Za-z_]\w*", rest)
    if word != "if":
        return (bool(names) and names[0] in macros) == (word == "ifdef")
    if number := re.fullmatch(r"\s*\(?\s*(\d+)\s*\)?\s*", rest):
        return int(number.group(1)) != 0
    if asked := re.fullmatch(r"\s*(!?)\s*defined\s*\(?\s*(\w+)\s*\)?\s*", rest):
        return (asked.group(2) in macros) != bool(asked.group(1))
    return True


def _expanded(tokens: Sequence[Token], macros: dict[str, Macro], where: str, count: int) -> list[Token]:
    """Tokens with macros replaced; the name of a macro inside its own body stays, as C has it."""
    stack = [(list(tokens[::-1]), frozenset[str]())]
    result: list[Token] = []
    while stack:
        waiting, active = stack[-1]
        if not waiting:
            stack.pop()
            continue
        token = waiting.pop()
        macro = macros.get(token[1]) if token[0] == "name" and token[1] not in active else None
        arguments = None
        if macro is not None and macro.arguments is not None:
            arguments = _arguments(waiting)
            if arguments is None or len(arguments) < len(macro.arguments):
                macro = None
        if macro is None:
            result.append(token)
            if arguments:  # of a macro that takes more
                result.extend(each for argument in arguments for each in argument)
        else:
            given = dict(zip(macro.arguments or (), arguments or (), strict=False))
            body = [each for part in macro.body for each in given.get(part[1], [part])]
            stack.append(([(kind, text, token[2]) for kind, text, _ in reversed(body)], active | {token[1]}))
        if count + len(result) + sum(len(each) for each, _ in stack) > MOST_TOKENS:
            raise ValueError(f"{where}, line {token[2]}: macros expand to more than {MOST_TOKENS} tokens")
    return result


def _arguments(waiting: list[Token]) -> list[list[Token]] | None:
    """Arguments of a call, taken from the end of `waiting`; None if no call stands there."""
    if not waiting or waiting[-1][1] != "(":
        return None
    depth, place, result = 0, len(waiting) - 1, list[list[Token]]([[]])
    while place >= 0:
        text = waiting[place][1]
        depth += (text in "([{") - (text in ")]}")
        if depth == 0:
            del waiting[place:]
            return result
        if text == "," and depth == 1:
            result.append([])
        elif depth > 1 or text != "(":
            result[-1].append(waiting[place])
        place -= 1
    return None


def _typed(tokens: list[Token]) -> list[Token]:
    """Tokens with names of scalar types (`typedef double T;`) replaced by the types themselves."""
    names: dict[str, list[Token]] = {}
    result: list[Token] = []
    place = 0
    while place < len(tokens):
        if tokens[place][1] == "typedef":
            end = next((at for at in range(place, len(tokens)) if tokens[at][1] == ";"), len(tokens))
            words = [each for token in tokens[place + 1 : end - 1] for each in names.get(token[1], [token])]
            if words and all(text in SCALARS for _, text, _ in words) and tokens[end - 1][0] == "name":
                names[tokens[end - 1][1]] = words
                place = end + 1
                continue
        kind, text, line = tokens[place]
        is_type = kind == "name" and text in names and not (place and tokens[place - 1][1] in (".", "->"))
        result.extend([(one, other, line) for one, other, _ in names[text]] if is_type else [tokens[place]])
        place += 1
    return result
