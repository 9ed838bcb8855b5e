"""Step times of image models: timm's benchmark tables joined with GraphNet's operator graphs.

Tables and sources go in; the weights of `step_time` come out, with their scores. Read `programs.py` first.
"""
