"""How long each peer was observed and connected. Start reading at `recorder.py`."""
