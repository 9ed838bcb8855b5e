from __future__ import annotations

import torch

from gst.nn import Head


def test_the_head_gives_one_number_per_graph_and_configuration() -> None:
    head, pooled = Head(5), torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    scores = head(pooled)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores[1:, 2:], head(pooled[1:, 2:]))


def test_classes_are_the_last_axis() -> None:
    assert Head(5, outputs=4)(torch.zeros(2, 3, 5)).shape == (2, 3, 4)
