"""Messages signed so that their destination accepts them, and the preflight of messages that are
signed already.

Start reading at `service.py`. `destination.py` reads what decides on acceptance: the epoch and the
Warp rules.
"""
