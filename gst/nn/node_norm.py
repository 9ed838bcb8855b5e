"""Normalisation over the nodes of a segment, under each class of configurations by itself."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.nn.sharing import Sharing


class NodeNorm(nn.Module):
    """Every channel less its mean over the nodes of the segment, in standard deviations, scaled and shifted: instance
    normalisation (Ulyanov et al. 2016, arXiv 1607.08022) with nodes for pixels, as in the network that won Kaggle's
    "Predict AI Model Runtime" (its code: github.com/thanhhau097/google_fast_or_slow).

    No statistic crosses a segment or a class of configurations, so neither the other segments of a batch nor the other
    configurations of a list matter. Each node hears of all nodes of its segment, as with attention: sharing takes
    `whole_segments`.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, rows: Float[Tensor, "rows channels"], sharing: Sharing, number: int) -> Tensor:
        """Rows after layer `number`."""
        group = _groups(sharing, number)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))[: len(group)]
        count = torch.bincount(group)[:, None].to(wide.dtype)

        def mean(x: Tensor) -> Tensor:
            return (x.new_zeros(len(count), x.shape[1]).index_add(0, group, x) / count).index_select(0, group)

        centred = wide - mean(wide)
        scaled = centred * (mean(centred.square()) + self.eps).rsqrt() * self.weight + self.bias
        return nn.functional.pad(scaled, (0, 0, 0, len(rows) - len(group))).to(rows.dtype)


def _groups(sharing: Sharing, number: int) -> Int64[Tensor, " used"]:
    """The segment and class of configurations of each row after a layer. All nodes of a segment tell the same classes
    apart, and number them alike."""
    level = sharing.levels[number + 1]
    node = level.node_of_row()
    segment, kind = sharing.segment_of_node[node], np.arange(len(node)) - level.first[node]
    return torch.from_numpy(np.unique(segment * (kind.max() + 1) + kind, return_inverse=True)[1]).to(sharing.device)
