"""Which node made which filter: a filter's id means nothing to any other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from warpseal.evm_rpc.pool import EvmPoolMember

MAX_FILTERS: Final = 100_000
_MAX_ID_CHARACTERS: Final = 256


class FilterRegistry:
    """Nodes by filter id; those not used for longest are forgotten first."""

    def __init__(self, max_filters: int = MAX_FILTERS) -> None:
        self._max_filters = max_filters
        self._homes: OrderedDict[str, EvmPoolMember] = OrderedDict()

    def settle(self, filter_id: object, member: EvmPoolMember) -> None:
        """Learn that a node has made a filter."""
        if isinstance(filter_id, str) and len(filter_id) <= _MAX_ID_CHARACTERS:
            self._homes[filter_id.lower()] = member
            if len(self._homes) > self._max_filters:
                self._homes.popitem(last=False)

    def home_of(self, params: msgspec.Raw | None) -> EvmPoolMember | None:
        """Return the node of the filter that is the first argument; None where it is not known."""
        try:
            given = msgspec.json.decode(params) if params is not None else []
        except msgspec.MsgspecError:
            return None
        filter_id = given[0] if isinstance(given, list) and given else None
        if not isinstance(filter_id, str) or filter_id.lower() not in self._homes:
            return None
        self._homes.move_to_end(filter_id.lower())
        return self._homes[filter_id.lower()]
