"""The Data API: what the history of the primary chains is asked, and how it is told."""
