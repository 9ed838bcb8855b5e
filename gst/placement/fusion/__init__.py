"""What plans with fused operations cost in simulation."""
