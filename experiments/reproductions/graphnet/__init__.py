"""Programs of GraphNet (PaddlePaddle, MIT): FX sources of networks, which are parsed and never executed.

An archive or a folder of samples goes in; modules that run, with random weights, come out. Read `reader.py` first, then
`module.py`.
"""
