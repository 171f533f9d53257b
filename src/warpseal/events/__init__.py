"""The daemon's events, and the one feed from which all listeners read; start with feed.py."""
