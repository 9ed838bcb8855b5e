"""`python -m experiments.bench NAME`: the benchmarks that results and documents name are there."""

from __future__ import annotations

import json
import re

import pytest

from experiments.bench.__main__ import main
from experiments.bench.commands import STUDIES
from experiments.figures.documents import RESULTS, ROOT, documents


def test_results_documents_and_makefile_name_benchmarks_that_exist() -> None:
    texts = [path.read_text() for path in [*documents(), ROOT / "Makefile"]]
    texts += [json.dumps(json.loads(path.read_text())) for path in RESULTS.rglob("*.json")]
    texts = [re.sub(r"at commit .*", "", text) for text in texts]  # of removed benchmarks
    names = {name for text in texts for name in re.findall(r"-m experiments\.bench ([a-z]\w*)", text)}
    assert len(names) > 8 and names <= set(STUDIES), names - set(STUDIES)


@pytest.mark.e2e
@pytest.mark.parametrize("name", STUDIES)
def test_every_benchmark_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "--json" in capsys.readouterr().out
