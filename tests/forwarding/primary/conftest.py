"""Tests against a real EVM node are collected where `make test` could install one (it comes from
npm).
"""

from __future__ import annotations

from tests.forwarding.evm.anvil import binary

collect_ignore = [] if binary() is not None else ["test_daemon_anvil.py"]
