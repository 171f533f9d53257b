"""Calls to upstream nodes, and their errors."""
