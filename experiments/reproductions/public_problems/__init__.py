"""MSR's cost graphs (Tarnawski et al., NeurIPS 2020): a file goes in; plans, experts' splits and lower bounds come out.

`cost_graphs.py` reads files, `published.py` has the published latency and a search by it, `branching.py` a lower bound
of the simulated makespan by branch and bound, `table.py` the study.
"""
