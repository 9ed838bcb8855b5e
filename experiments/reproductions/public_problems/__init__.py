"""Placement problems that others published (MSR, DOPPLER, Moirai, PipeDream, Piper, WfFormat).

A file of one of these formats goes in; a plan, a lower bound and proofs come out. `formats.py` reads the files,
`problem.py` puts them on a machine, `placing.py` places them.
"""
