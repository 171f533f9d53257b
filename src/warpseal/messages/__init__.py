"""Warp messages of any origin: described as JSON, and verified as their destination does."""
