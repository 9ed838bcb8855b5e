"""ColocRL (Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017), Table 1, on our
workloads: a single device, minimum cuts (METIS where the paper has Scotch and MinCut), the expert's layers in blocks.

    python -m experiments.reproductions.colocrl
"""

from experiments.reproductions.placement_tables import command_line

if __name__ == "__main__":
    command_line("colocrl", __doc__, ["experiments.reproductions.colocrl.method:colocrl"])
