"""/health: the daemon is alive, in the words of the reference. /ready: it can sign, and for whom it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from warpseal.errors import MissingValidator
from warpseal.warp.ids import SubnetID, id_text

CHECK: Final = "signature-aggregator-health"
MAX_SHOWN: Final = 50


class SubnetReadiness(Protocol):
    """How much of one always followed subnet is connected, by the set at the proposed height."""

    @property
    def subnet_id(self) -> SubnetID:
        """The subnet."""
        ...

    @property
    def connected_weight(self) -> int:
        """Weight of the validators that are connected, each key counted once."""
        ...

    @property
    def required_weight(self) -> int:
        """Weight that must be connected."""
        ...

    @property
    def total_weight(self) -> int:
        """Weight of the whole set."""
        ...

    @property
    def missing(self) -> Sequence[MissingValidator]:
        """Validators that are not connected, heaviest first."""
        ...


class Readiness(Protocol):
    """Whether the daemon can sign."""

    @property
    def fault(self) -> str | None:
        """What keeps it from signing for any subnet at the proposed height."""
        ...

    @property
    def subnets(self) -> Sequence[SubnetReadiness]:
        """The Primary Network and the tracked subnets."""
        ...


class HealthPages:
    """Shows what `readiness` tells at the moment of each request."""

    def __init__(
        self, readiness: Callable[[], Readiness], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._readiness = readiness
        self._now = now

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while the daemon is alive; its body says whether it is ready."""
        faults = list(_faults(self._readiness()))
        status = "down" if faults else "up"
        check = {"status": status, "timestamp": self._now().isoformat().replace("+00:00", "Z")}
        if faults:
            check["error"] = "; ".join(faults)
        return _json({"status": status, "details": {CHECK: check}}, 200)

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 where every always followed subnet has its weight connected, else 503."""
        readiness = self._readiness()
        faults = list(_faults(readiness))
        shown: dict[str, Any] = {"ready": not faults, "subnets": [_shown(s) for s in readiness.subnets]}
        if faults:
            shown["faults"] = faults
        return _json(shown, 503 if faults else 200)


def is_connected(subnet: SubnetReadiness) -> bool:
    """Tell whether enough of a subnet is connected to sign for it."""
    return subnet.total_weight > 0 and subnet.connected_weight >= subnet.required_weight


def _faults(readiness: Readiness) -> Iterable[str]:
    if readiness.fault:
        yield readiness.fault
    for subnet in readiness.subnets:
        if not is_connected(subnet):
            yield (
                f"subnet {id_text(subnet.subnet_id)}: connected weight {subnet.connected_weight} "
                f"of {subnet.required_weight} needed (total {subnet.total_weight})"
            )


def _shown(subnet: SubnetReadiness) -> dict[str, Any]:
    return {
        "subnetId": id_text(subnet.subnet_id),
        "ready": is_connected(subnet),
        "connectedWeight": str(subnet.connected_weight),
        "requiredWeight": str(subnet.required_weight),
        "totalWeight": str(subnet.total_weight),
        "missing": [validator.as_json() for validator in subnet.missing[:MAX_SHOWN]],
    }


def _json(shown: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(shown, separators=(",", ":")), status, media_type="application/json")
