"""Settings of all tests: property tests are bounded by their examples, never by the speed of the machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("warpseal", deadline=None)
settings.load_profile("warpseal")
