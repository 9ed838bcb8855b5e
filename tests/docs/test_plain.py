"""`.ci/plain`: each rule finds its violation, and leaves plain text alone."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PLAIN = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "plain"), run_name="plain")
LONG = "word " * 61
VIOLATIONS = {
    "free relative": ("a.py", '"""What a module holds."""\n'),
    "more than 30 words": ("a.py", f'def f():\n    """Return {"a word " * 16}."""\n'),
    "ends in a preposition": ("a.py", 'def f():\n    """Return the thing that it ends with."""\n'),
    "more than 60 words": ("a.md", f"# Title\n\n- {LONG[:150]}\n  {LONG[150:]}\n"),
    "more than 160 characters": ("a.md", "x" * 161 + "\n"),
}
PLAIN_TEXTS = {
    "a.py": '"""Content of a module.\n\nWhat follows may be longer.\n"""\n',
    "a.md": f"One.\n\nTwo.\n\n| {LONG} |\n|---|\n\n```text\n{LONG * 2}\n```\n\n[link]({'x' * 200})\n",
}


def violations(path: Path, text: str) -> list[str]:
    path.write_text(text)
    kind = "docstring_violations" if path.suffix == ".py" else "page_violations"
    return [rule for rule, _ in PLAIN[kind](path)]


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_each_rule_finds_its_violation(rule: str, tmp_path: Path) -> None:
    name, text = VIOLATIONS[rule]
    (found,) = violations(tmp_path / name, text)
    assert rule in found


@pytest.mark.parametrize("name", PLAIN_TEXTS)
def test_plain_text_passes(name: str, tmp_path: Path) -> None:
    assert violations(tmp_path / name, PLAIN_TEXTS[name]) == []
