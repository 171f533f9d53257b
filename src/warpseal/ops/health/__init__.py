"""Health checks, run in rounds and answered from the last one. Start reading at `registry.py`."""
