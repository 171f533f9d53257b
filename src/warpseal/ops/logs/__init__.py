"""Loggers by name, each with a file and a display level, changed while the daemon runs.

Start at `loggers.py`.
"""
