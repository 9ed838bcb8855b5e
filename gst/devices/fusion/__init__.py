"""Groups of operations that are compiled into one: which are legal, and programs in which they are one node."""
