"""ICM messages: what hinders one (`obstacles.py`, where to start), and signing them ahead
(`signer.py`).
"""
