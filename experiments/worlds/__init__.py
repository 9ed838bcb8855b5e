"""Hidden worlds: the placement loop against machines that it can only measure, with controls.

A world and a seed go in; the plan that each way of choosing finds within so many measurements comes out. Read
`world.py` first, then `fitted.py` (the control) and `study.py`.
"""
