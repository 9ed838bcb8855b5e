"""Synthesis recipes: sequences of abc commands, written as one letter for each command.

The 1,500 scripts of OpenABC-D (Chowdhury et al. 2021, arXiv 2110.11292, section 3) are sequences of 20 commands drawn
from seven; what a script does before and after them (reading, mapping, sizing) is left out.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from gst.util.untrusted import DAMAGE, plain, shown

COMMANDS = {
    "b": "balance", "w": "rewrite", "W": "rewrite -z", "f": "refactor", "F": "refactor -z", "s": "resub",
    "S": "resub -z",
}  # fmt: skip
LETTERS = "".join(COMMANDS)
SHIPPED_RECIPES = Path(__file__).with_name("recipes.txt")
"""The recipes of OpenABC-D in letters, one a line, in the order of their numbers."""
ARCHIVE = "referenceScripts.zip"
MOST_COMMANDS = 1_000  # of a recipe
MOST_SCRIPT_BYTES = 1 << 16
_LETTER = {command: letter for letter, command in COMMANDS.items()}


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


def numbers(recipes: Sequence[str]) -> Int64[np.ndarray, "recipes commands"]:
    """Recipes of one length as numbers of their commands, in the order of `LETTERS`.

    Examples:
        >>> numbers(["bw", "Wb"]).tolist()
        [[0, 1], [2, 0]]
    """
    return np.array([[LETTERS.index(letter) for letter in recipe] for recipe in recipes], np.int64)


def columns(recipes: Int64[np.ndarray, "recipes commands"]) -> Float64[np.ndarray, "recipes columns"]:
    """A recipe for trees and linear models: each command at each place, and how often, how late and how often among
    the last five each command comes.

    Examples:
        >>> columns(numbers(["bw", "Wb"])).shape
        (2, 35)
    """
    places = np.eye(len(LETTERS))[recipes]
    late = np.linspace(0, 1, recipes.shape[1])[:, None]
    return np.concatenate([places.reshape(len(recipes), -1), places.sum(1), (places * late).sum(1),
                           places[:, -5:].sum(1)], axis=1)  # fmt: skip


def read_script(text: str) -> str:
    """The recipe in an abc script: its commands between the first two `write_bench`, or all of them without any.

    Examples:
        >>> read_script("strash\\nwrite_bench a.bench\\nrewrite -z\\nbalance\\nwrite_bench b.bench\\ndch\\n")
        'Wb'

    Raises:
        ValueError: a command is none of `COMMANDS`.
    """
    lines = [re.sub(r"\s+", " ", line).strip() for line in re.split(r"[;\n]", text)]
    written = [number for number, line in enumerate(lines) if line.startswith("write_bench")]
    if len(written) > 1:
        lines = lines[written[0] + 1 : written[1]]
    chosen = [line for line in lines if line and line != "strash"]
    if unknown := [line for line in chosen if line not in _LETTER]:
        raise ValueError(f"it has the command {shown(unknown[0])}, want those of {', '.join(_LETTER)}")
    return "".join(_LETTER[line] for line in chosen)


def read_recipes(path: Path) -> list[str]:
    """The recipes of an archive of scripts (`referenceScripts.zip`) in the order of their numbers, or of a text file
    with one recipe in letters per line.

    Raises:
        ValueError: the file is missing or damaged, or holds something else; the message names the script or line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.suffix != ".zip":
        lines = path.read_text(errors="replace").split()
        for number, line in enumerate(lines, start=1):
            try:
                commands(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
        return lines
    recipes = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".script"):
                    continue
                if info.file_size > MOST_SCRIPT_BYTES:
                    raise ValueError(f"script {shown(info.filename)} has {info.file_size} bytes")
                number = int("".join(re.findall(r"\d", Path(info.filename).stem)) or 0)
                try:
                    recipe = read_script(archive.read(info).decode("ascii", "replace"))
                    commands(recipe)
                except ValueError as error:
                    raise ValueError(f"script {shown(info.filename)}: {error}") from None
                recipes[number, info.filename] = recipe
    except DAMAGE as error:
        raise ValueError(f"{path}: no readable archive of scripts ({plain(error)})") from error
    if not recipes:
        raise ValueError(f"{path}: holds no script (*.script)")
    return [recipes[key] for key in sorted(recipes)]
