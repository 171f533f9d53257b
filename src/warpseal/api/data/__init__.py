"""The Data API: the history of the primary chains and of the EVM chains over HTTP.

Start with `endpoints.py`: routes, the OpenAPI document and the bodies of pages (`pages.py`) are
made of its rows. `parameters.py` has the kinds of parameters. `request_context.py` is what all
handlers share; `primary_context.py` adds the primary chains for `chain_endpoints.py` and
`staking_endpoints.py`, `evm_context.py` an EVM chain for `evm_endpoints.py` and
`metrics_endpoints.py`. `endpoint_needs.py` has the objects that a handler takes behind its context.
"""
