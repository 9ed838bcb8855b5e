"""Mutants of one line, each of which the nearest tests kill or not."""

from pathlib import Path

import pytest

from experiments.bench import mutants

TEXT = '''"""Text 0."""
def least(values, start: int = 0):
    if not values:
        raise ValueError("0 values" if 1 else "")
    for each in values:
        if each < start and each != 0:
            break
    return min(values, default=start) + 2
'''
AFTER = {
    "def least(values, start: int = 1):", "if (values):", "if (each < start or each != 0):", "continue",
    "if (each <= start) and each != 0:", "if each < start and (each == 0):", "if each < start and each != 1:",
    "return (min(values, default=start) - 2)", "return max(values, default=start) + 2", "return min(values) + 2",
}  # fmt: skip


def test_expressions_change_one_at_a_time_and_messages_never(tmp_path: Path) -> None:
    (tmp_path / "least.py").write_text(TEXT)
    assert {each["after"] for each in mutants.mutants_of(tmp_path / "least.py")} == AFTER


@pytest.mark.e2e
def test_a_changed_kernel_is_compiled_anew_and_killed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "pytest.ini").write_text("[pytest]\nmarkers = slow\n e2e\n rest\n")
    kernel = "import numba\n\n@numba.njit(cache=True)\ndef total(a, b):\n    kept = b * 1\n    return a + kept\n"
    (tree / "kernel.py").write_text(kernel)
    (tree / "tests" / "test_kernel.py").write_text(
        "from kernel import total\n\ndef test_it():\n    assert total(1, 2) == 3\n"
    )
    tests = ["tests/test_kernel.py"]
    assert not mutants.failing_test(tree, tmp_path / "numba", tests)
    for before, after, killed in (
        ("return a + kept", "return a - kept", True),
        ("kept = b * 1", "kept = b / 1", False),
    ):
        mutant = {"file": "kernel.py", "line": 5, "before": before, "after": after}
        assert bool(mutants.killed_by(mutant, tree, tmp_path / "numba", tests)) == killed
        assert (tree / "kernel.py").read_text() == kernel
