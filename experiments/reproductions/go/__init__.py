"""GO (Zhou et al., NeurIPS 2020): placement, joint tasks, and programs never seen."""
