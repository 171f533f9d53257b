"""Signs messages so that their destination accepts them; preflight of signed messages.

Start reading at `service.py`. `destination.py` reads what decides on acceptance: the epoch and the
Warp rules.
"""
