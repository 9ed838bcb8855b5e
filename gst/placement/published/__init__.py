"""Published cost graphs by their published latency: searched, and solved exactly."""
