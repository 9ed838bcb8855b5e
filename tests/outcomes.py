"""Outcomes of commands, as tests compare them: refusals in one line, and equal checkpoints."""

from __future__ import annotations

import pytest
import torch

from gst.cli import main


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    """Assert that a command ends with status 2 and one last line that holds these words."""
    capsys.readouterr()
    assert main(arguments) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("gst: error: ") and all(word in last for word in words), last


def same(first: object, second: object) -> bool:
    """True if two parts of checkpoints are equal, bit by bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second
