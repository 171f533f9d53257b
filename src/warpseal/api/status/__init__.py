"""The daemon's state for its operators: `/status.json`, and the landing page `/`.

Start reading at `document.py`.
"""
