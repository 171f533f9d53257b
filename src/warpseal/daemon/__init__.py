"""The daemon: its process (`app.py`), its subsystems and their order (`subsystems.py`), one module
for each.
"""
