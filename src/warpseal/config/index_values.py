"""Turns raw values of the settings about the index into typed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from warpseal.config.values import fault, integer, text
from warpseal.history.chains import PrimaryChain


def primary_chain(value: Any, path: str) -> PrimaryChain:
    """Accept one of p, x, c, or its whole name."""
    named = {name: chain for chain in PrimaryChain for name in (chain.value, chain.value[0])}
    chain = named.get(text(value, path).lower())
    if chain is None:
        raise fault(path, "expected p, x or c")
    return chain


def first_heights(value: Any, path: str) -> Mapping[PrimaryChain, int]:
    """Accept an object of heights by chain, or its JSON text."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise fault(path, 'expected heights by chain, such as {"c": 30000000}')
    height = integer(0, 2**40 - 1)
    return {primary_chain(name, path): height(number, f"{path}.{name}") for name, number in given.items()}
