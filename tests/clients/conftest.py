"""Tests with published clients are collected where `make test` could install them (they come from npm)."""

from __future__ import annotations

from tests.clients.published import are_installed

_NEED_THEM = ("test_data_api_sdks.py", "test_node_client.py")
collect_ignore = [] if are_installed() else [*_NEED_THEM]
