"""TpuGraphs (Phothilimthana et al., NeurIPS 2023): its genuine files, learned from and ordered."""
