"""GO (Zhou et al., Transferable Graph Optimizers for ML Compilers, NeurIPS 2020), placement by GO-one, on our
workloads: the expert's layers in blocks, METIS and HDP as in the paper, and beside them what the paper left out: list
schedules (HEFT, m-ETF, m-SCT), annealing, and our own policy, all with the same budget.

    python -m experiments.reproductions.go
"""

from experiments.reproductions.placement_tables import command_line

if __name__ == "__main__":
    command_line("go", __doc__, ["experiments.reproductions.hdp.method:hdp", "go", "annealing"])
