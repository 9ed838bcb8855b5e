"""The examples of docstrings in experiments run and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_examples import check_examples, files_with_examples


@pytest.mark.parametrize("path", files_with_examples("experiments"), ids=str)
def test_the_examples_of_a_module_of_experiments_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_examples(path)
