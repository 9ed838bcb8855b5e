"""The techniques of the competition on TpuGraphs (Kaggle 2023) and of TGraph, one at a time."""
