"""Calls of EVM chains that the daemon passes on to the chains' nodes, and what it can answer in their stead."""
