"""The aggregation endpoints: request body to AggregationRequest, result or error to JSON.

Start at `endpoints.py`.
"""
