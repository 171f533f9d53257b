"""The Data API: the history of the primary chains over HTTP.

Start with `routes.py`. `operations.py` and `parameters.py` describe the endpoints for the routes and for the OpenAPI
document; `chain_endpoints.py` and `staking_endpoints.py` handle requests; `request_context.py` is what they share.
"""
