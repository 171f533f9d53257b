"""Our own signed address: nowhere, since we do not listen, but nodes want it signed by two keys all the same."""

from __future__ import annotations

from collections.abc import Callable

from warpseal import bls
from warpseal.peers.identity import Identity
from warpseal.protocol.handshake import OwnClaim, sign_claim


class OwnAddress:
    """The claim that all our handshakes carry. Its BLS key is thrown away with the process."""

    def __init__(self, identity: Identity, unix_clock: Callable[[], float]) -> None:
        self._identity = identity
        self._unix_clock = unix_clock
        self._bls_secret = bls.generate_secret()
        self._claim: OwnClaim | None = None

    def claim(self) -> OwnClaim:
        """Return the claim; signed again (two milliseconds) only where our clock was ahead when it was signed.

        Nodes hang up on an address from the future, so a clock that was set right would cost every connection.
        """
        now = int(self._unix_clock())
        if self._claim is None or self._claim.timestamp > now:
            self._claim = sign_claim(self._identity.sign, self._bls_secret, now)
        return self._claim
