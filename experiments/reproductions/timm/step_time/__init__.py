"""Step times of programs on machines that are described by their peak rates.

A captured step, a GraphNet sample or an XLA program goes in; milliseconds with an interval come out. Operators become
steps (`steps.py`), kernels (`fusion.py`, `kernels.py`) and rows (`rows.py`) of a model (`model.py`). Read `estimate.py`
first.
"""
