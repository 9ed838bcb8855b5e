"""Graph Segment Training (Cao et al., NeurIPS 2023) in plain PyTorch.

Segmented graphs and configurations go in, predictions come out. Read `estimator.py` first: a step draws (`draws.py`),
encodes (`encoding.py`), pulls and pushes rows (`rows.py`; `exchange.py` over several processes) and combines both
by the weights of an estimate (`estimates.py`). `fixed_step.py` is the same step with fixed shapes;
`recorded.py` launches it as one graph."""
