"""Entry points: `gst.place`, `gst.placed`, the `torch.compile` backend, `gst place`. Read `placed.py` first."""
