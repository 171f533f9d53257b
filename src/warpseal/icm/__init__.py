"""ICM messages: what hinders them (start with `obstacles.py`), and signing ahead (`signer.py`)."""
