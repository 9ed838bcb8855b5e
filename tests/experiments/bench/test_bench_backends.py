from __future__ import annotations

import json

from experiments.bench.backends import run
from gst.nn import sparse
from gst.nn.sparse import has_torch_sparse


def test_a_small_comparison_says_what_ran_and_what_is_faster() -> None:
    said = []
    result = run(lambda *what: said.append(what), shapes=((40, 8),), repetitions=1)
    assert json.loads(json.dumps(result)) == result
    assert said[-1] == ("done", 8, 8)
    assert [(case["reduction"], case["dtype"], case["backward"]) for case in result["cases"]] == [
        (reduction, dtype, backward)
        for dtype in ("float32", "bfloat16")
        for reduction in ("sum", "max")
        for backward in (False, True)
    ]
    for case in result["cases"]:
        assert case["native"] > 0
        if has_torch_sparse():
            assert case["torch_sparse"] > 0
            assert result["faster"][f"cpu {case['dtype']}"]["backend"] in ("native", "torch_sparse")
    assert sparse._backend == "native"
