"""Times of transformers on a GPU that was never measured (NeuSight, Lee et al., ASPLOS 2025): model and controls."""
