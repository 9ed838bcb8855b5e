"""Synthesis recipes: sequences of abc commands, written as one letter for each command.

The 1,500 scripts of OpenABC-D (Chowdhury et al. 2021, arXiv 2110.11292, section 3) are sequences of 20 commands drawn
from seven; what a script does before and after them (reading, mapping, sizing) is left out.
"""

from __future__ import annotations

from pathlib import Path

from gst.util.untrusted import shown

COMMANDS = {
    "b": "balance", "w": "rewrite", "W": "rewrite -z", "f": "refactor", "F": "refactor -z", "s": "resub",
    "S": "resub -z",
}  # fmt: skip
LETTERS = "".join(COMMANDS)
SHIPPED_RECIPES = Path(__file__).with_name("recipes.txt")
"""The recipes of OpenABC-D in letters, one a line, in the order of their numbers."""
MOST_COMMANDS = 1_000  # of a recipe


def commands(recipe: str) -> list[str]:
    """The abc commands of a recipe.

    Examples:
        >>> commands("bWs")
        ['balance', 'rewrite -z', 'resub']

    Raises:
        ValueError: a letter stands for no command, or there are none or too many.
    """
    if not 0 < len(recipe) <= MOST_COMMANDS or set(recipe) - set(LETTERS):
        wanted = ", ".join(f"{letter} = {command}" for letter, command in COMMANDS.items())
        raise ValueError(f"recipe {shown(recipe)}: want 1 to {MOST_COMMANDS} letters of {wanted}")
    return [COMMANDS[letter] for letter in recipe]


def read_recipes(path: Path) -> list[str]:
    """Return the recipes of a text file, one in letters per line.

    Raises:
        ValueError: the file is missing, or a line is no recipe; the message names the line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    lines = path.read_text(errors="replace").split()
    for number, line in enumerate(lines, start=1):
        try:
            commands(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return lines
