"""The commands that speak with any peer, of any of the three protocols: inspect, tail, copy."""
