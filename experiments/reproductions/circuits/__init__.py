"""Logic synthesis: how small and shallow a circuit becomes under a recipe (OpenABC-D, task 1)."""
