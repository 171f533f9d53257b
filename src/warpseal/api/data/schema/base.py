"""What all resources have in common: names in camel case, nothing told that is not known, nothing told as null.

Source of truth: the specification's conventions. A field that may be left out is `UNSET` by default, and then absent
from the JSON: the published SDKs take null for a fault.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Encoder


class Resource(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Base of every resource."""


ENCODER: Final = Encoder()

__all__ = ["ENCODER", "UNSET", "Resource", "UnsetType"]
