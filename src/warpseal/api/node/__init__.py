"""The node API under `/ext`: administration, health, validators and EVM RPC.

Start reading at `app.py`.
"""
