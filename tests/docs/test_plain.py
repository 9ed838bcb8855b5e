"""`.ci/plain`: each rule finds its violation, and leaves plain text alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = Path(__file__).parents[2] / ".ci" / "plain"
LONG = "word " * 61
VIOLATIONS = {
    "free relative": ("a.py", '"""What a module holds."""\n'),
    "more than 30 words": ("a.py", f'def f():\n    """Return {"a word " * 16}."""\n'),
    "more than 60 words": ("a.md", f"# Title\n\n- {LONG[:150]}\n  {LONG[150:]}\n"),
    "more than 160 characters": ("a.md", "x" * 161 + "\n"),
}
PLAIN_TEXTS = {
    "a.py": '"""Content of a module.\n\nWhat follows may be longer.\n"""\n',
    "a.md": f"One.\n\nTwo.\n\n| {LONG} |\n|---|\n\n```text\n{LONG * 2}\n```\n\n[link]({'x' * 200})\n",
}


def run(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run([sys.executable, str(PLAIN), str(path)], capture_output=True, text=True)


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_each_rule_finds_its_violation(rule: str, tmp_path: Path) -> None:
    name, text = VIOLATIONS[rule]
    done = run(tmp_path / name, text)
    assert done.returncode == 1 and rule in done.stdout.splitlines()[0], done.stdout
    assert done.stdout.splitlines()[-1].startswith("plain: 1 violations in 1 files; product: ")


@pytest.mark.parametrize("name", PLAIN_TEXTS)
def test_plain_text_passes(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / name, PLAIN_TEXTS[name])
    assert done.returncode == 0 and done.stdout.startswith("plain: 0 violations in 1 files"), done.stdout
