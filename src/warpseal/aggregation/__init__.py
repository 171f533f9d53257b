"""Aggregation of signatures: from a request to a verified message, or to the reason of a failure.

Start with `service` (the use case); then `round` (the pure state of one shared round: events in,
actions out) and `round_runner` (its asyncio shell). The rules and a state diagram are in
docs/aggregation.md.
"""
