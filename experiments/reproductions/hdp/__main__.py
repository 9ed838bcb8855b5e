"""HDP (Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018), Table 1, on our workloads: a single
device, the expert's layers in blocks, METIS for Scotch and MinCut, and ColocRL, which it replaces.

    python -m experiments.reproductions.hdp
"""

from experiments.reproductions.placement_tables import command_line

if __name__ == "__main__":
    command_line("hdp", __doc__, [f"experiments.reproductions.{name}.method:{name}" for name in ("colocrl", "hdp")])
