"""Entry points of placement: `gst.place`, `gst.placed`, the `torch.compile` backend, and the code behind `gst place`.

A model, a step or a program name goes in; a runnable module or a written plan comes out. Read `placed.py` first.
"""
