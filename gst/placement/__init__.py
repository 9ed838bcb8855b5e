"""Plans for programs on devices: baselines, searches, policies, the loop that measures, and `gst.place`."""
