"""The history of the primary chains, independent of the database.

Start with `interfaces.py`: `PrimaryNetworkIndex` takes the queries of `queries.py` and returns the
resources of `transactions.py` and `blocks.py`. `aliases.py` has the names of blockchains.
"""
