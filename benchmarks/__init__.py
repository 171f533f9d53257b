"""Benchmarks of the whole daemon against a simulated network: `python -m benchmarks [NAME ...]
[--quick]`.
"""
