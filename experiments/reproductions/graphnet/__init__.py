"""Programs of GraphNet (PaddlePaddle, MIT): FX sources of networks, which are parsed and never executed.

An archive or a folder of samples goes in; operators with the shape of every value (`reader.py`, read it first) or
graphs (`fx_graphs.py`) come out.

    gst prepare experiments.reproductions.graphnet.fx_graphs:FxGraphs --arg path=graphnet.tar.xz
"""
