"""Uptime of peers as this daemon observes it, per validation and per hour.

Start with `recorder.py`.
"""
