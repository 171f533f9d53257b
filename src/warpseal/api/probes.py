"""/health: the daemon is alive, in the words of the reference. /ready: it can sign, and for whom it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import id_text, node_id_text
from warpseal.warp.validator_set import Validator, required_weight

CHECK: Final = "signature-aggregator-health"
READY_PERCENTAGE: Final = 67
MAX_SHOWN: Final = 50
STALE_HEIGHT: Final = "the proposed P-Chain height is not known, or stale"


class ProbeEndpoints:
    """Shows how the daemon stands at the moment of each request.

    readiness: the Primary Network and the tracked subnets. height_is_fresh: the proposed height can be relied on.
    background: what signing does not need, such as the store and the index; it never changes a status.
    """

    def __init__(
        self,
        readiness: Callable[[], Sequence[SubnetReadiness]],
        height_is_fresh: Callable[[], bool],
        background: Callable[[], Mapping[str, Any]] = dict,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._readiness = readiness
        self._height_is_fresh = height_is_fresh
        self._background = background
        self._now = now

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while the daemon is alive; its body says whether it is ready."""
        faults = list(self._faults(self._readiness()))
        status = "down" if faults else "up"
        check = {"status": status, "timestamp": self._now().isoformat().replace("+00:00", "Z")}
        if faults:
            check["error"] = "; ".join(faults)
        return _json({"status": status, "details": {CHECK: check}}, 200)

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 where every subnet that is always followed has enough weight connected, else 503."""
        subnets = self._readiness()
        faults = list(self._faults(subnets))
        shown: dict[str, Any] = {"ready": not faults, "subnets": [_shown(subnet) for subnet in subnets]}
        if faults:
            shown["faults"] = faults
        shown.update(self._background())
        return _json(shown, 503 if faults else 200)

    def _faults(self, subnets: Sequence[SubnetReadiness]) -> Iterator[str]:
        if not self._height_is_fresh():
            yield STALE_HEIGHT
        for subnet in subnets:
            if not subnet.is_known:
                yield f"subnet {id_text(subnet.subnet_id)}: its validators are not known yet"
            elif not _is_ready(subnet):
                yield (
                    f"subnet {id_text(subnet.subnet_id)}: connected weight {subnet.connected} of "
                    f"{required_weight(subnet.total, READY_PERCENTAGE)} needed (total {subnet.total})"
                )


def _is_ready(subnet: SubnetReadiness) -> bool:
    return subnet.total > 0 and subnet.connected >= required_weight(subnet.total, READY_PERCENTAGE)


def _shown(subnet: SubnetReadiness) -> dict[str, Any]:
    return {
        "subnetId": id_text(subnet.subnet_id),
        "ready": _is_ready(subnet),
        "connectedWeight": str(subnet.connected),
        "requiredWeight": str(required_weight(subnet.total, READY_PERCENTAGE)),
        "totalWeight": str(subnet.total),
        "missingValidators": len(subnet.missing),
        "missing": [_shown_validator(validator) for validator in subnet.missing[:MAX_SHOWN]],
    }


def _shown_validator(validator: Validator) -> dict[str, Any]:
    return {
        "nodeIds": [node_id_text(node_id) for node_id in validator.node_ids[:MAX_SHOWN]],
        "publicKey": "0x" + validator.public_key.hex(),
        "weight": str(validator.weight),
    }


def _json(shown: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(shown, separators=(",", ":")), status, media_type="application/json")
