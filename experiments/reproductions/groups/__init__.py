"""Times of compiled groups of operations of programs never seen: the GST cost model, and controls."""
