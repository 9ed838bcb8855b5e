"""`make gpu`: what there is to test and to time on an accelerator, and what can be proven without one; see `run`."""
