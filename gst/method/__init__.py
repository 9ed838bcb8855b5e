"""Graph Segment Training (Cao et al., NeurIPS 2023): the estimator and its parts, in plain PyTorch."""
