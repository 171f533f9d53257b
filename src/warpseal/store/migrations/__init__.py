"""The schema's versions, one module each in versions/, oldest first; a released one never changes.

A module with `SLOW = True` is not for the start of a daemon: its `step(connection)`, with a Connection of
the store, does a bounded piece of the work in a transaction of its own, can be repeated, and returns the fraction
done; at 1.0 `upgrade()` follows.
"""
