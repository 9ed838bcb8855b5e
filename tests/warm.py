"""Compiled code, loaded once for all processes that tests make: see `ranks.in_processes`."""

import torch

from embedding_cache import EmbeddingTable
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

torch.set_num_threads(1)
_model = GraphSegmentTraining(SAGE(4, 2, num_opcodes=8, config_symbols=7), Head(4), table=EmbeddingTable(1, 4))
_graph = segment(synthetic_program(60, 3), 20)
for _dtype in (torch.float32, torch.float64):
    _model.embed([_graph])
    _model.to(_dtype)([_graph]).sum().backward()
torch.optim.SGD(_model.parameters(), 0.1).step()  # the first optimizer of a process loads a compiler
