"""Graph Segment Training (Cao et al., NeurIPS 2023): the estimator and its parts, in plain PyTorch.

Segmented graphs and an encoder go in; predictions with gradients come out. Read `estimator.py`, then `draws.py`.
"""
