"""ICM messages of indexed chains between their source and their destination; signer.py signs them ahead."""
