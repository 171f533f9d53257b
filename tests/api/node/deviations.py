"""What the recorded nodes answered and we answer otherwise, on purpose; docs/node-interfaces.md
gives the reasons.
"""

from __future__ import annotations

from typing import Final

DECODER_TEXTS: Final = "texts and data of -32700"
NO_CREDENTIALS: Final = "no CORS on /ext/admin, no credentials with `*`"
SET_LOGGER_LEVEL: Final = "admin.setLoggerLevel answers {}"
NO_DB_GET: Final = "no admin.dbGet, no admin.getConfig"
ROUTE_HEADER: Final = "Avalanche-Api-Route counts under /ext only"
OTHER_CHECKS: Final = "no checks bls, futureupgrade"
NULL_ALIASES: Final = "admin.getChainAliases of an unknown chain answers []"
DISK_WARNING: Final = "little disk space is a warning, not a failure"
ROUTER_LIMIT: Final = "the limit of outstanding requests grows with the peers"
TRACES: Final = "admin.stacktrace writes to the profiles folder"
NO_H2C: Final = "no h2c"
OTHER_ALIAS_TEXT: Final = "an alias never hides another kind of name"
NODE_ID_LATER: Final = "no node-id header before the network is known"

DEVIATIONS: Final = (
    DECODER_TEXTS,
    NO_CREDENTIALS,
    SET_LOGGER_LEVEL,
    NO_DB_GET,
    ROUTE_HEADER,
    OTHER_CHECKS,
    NULL_ALIASES,
    DISK_WARNING,
    ROUTER_LIMIT,
    TRACES,
    NO_H2C,
    OTHER_ALIAS_TEXT,
    NODE_ID_LATER,
)
