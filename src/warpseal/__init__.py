"""Warpseal: aggregates the BLS signatures of Avalanche validators over Warp messages."""

__version__ = "0.1.0"
