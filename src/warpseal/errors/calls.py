"""What a method of the node interfaces refuses a call with: a text, and nothing else."""

from __future__ import annotations


class CallRefused(Exception):
    """A call that cannot be done; its text is what the caller is told, in an envelope, with status 200."""
