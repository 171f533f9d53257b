"""When validators of a subnet leave its quorum, and the balances that prevent it.

Start with `outlook.py`; pure.
"""
