"""How long plans take without running them: discrete events over measured costs, and orders of operations."""
