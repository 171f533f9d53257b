"""Errors of opening and using a store; callers of the API see only `StoreDown`."""

from __future__ import annotations

from typing import ClassVar

from warpseal.errors import RETRY_SOON_S, StartupError, WarpsealError
from warpseal.version import __version__


class StoreDown(WarpsealError):
    """The database cannot be read or written now."""

    code = "store_down"
    http_status = 503
    retry_after_s: float = RETRY_SOON_S
    _text: ClassVar[str] = "the store is not available: {}"

    def __init__(self, reason: str) -> None:
        super().__init__(self._text.format(reason))
        self.reason = reason

    def __reduce__(self) -> tuple[type[StoreDown], tuple[str]]:
        """Pickle the reason: the worker process of the index raises these errors."""
        return StoreDown, (self.reason,)


class CursorExpired(WarpsealError):
    """A cursor is of another event log, beyond its end, or before deleted events.

    reason: end of a sentence whose subject is the event log.
    oldest: cursor before the oldest event.
    """

    code = "cursor_expired"
    http_status = 400

    def __init__(self, oldest: str, reason: str = "begins after this cursor") -> None:
        super().__init__(f"the event log {reason}: continue with {oldest}", oldest=oldest)


class StoreUnusable(StartupError):
    """A database cannot be opened, and waiting does not help.

    where: url of the database without secrets, or its path.
    kind: name of the kind of database: store, index, or database for either of them.
    """

    def __init__(self, where: str, reason: str, *, kind: str = "store") -> None:
        super().__init__(f"the {kind} {where} cannot be used: {reason}")


class StoreTooNew(StartupError):
    """A newer program has upgraded the store, which an older program must not touch."""

    def __init__(self, where: str, version: str, own_version: str, program: str | None) -> None:
        """program: version of the program that upgraded the store, if it is recorded."""
        writer = f"warpseal {program}" if program else "a newer warpseal"
        super().__init__(
            f"the store {where} was written by {writer} (schema version {version}), and this is"
            f" warpseal {__version__} (schema version {own_version}): run the newer program, or"
            " restore a backup"
        )


class StoreNeedsUpgrade(StartupError):
    """The store's schema is older than the program's.

    is_quick: whether the start of a daemon upgrades it.
    """

    def __init__(
        self, where: str, version: str | None, own_version: str, *, is_quick: bool
    ) -> None:
        first = "start the daemon, which upgrades it, or " if is_quick else ""
        super().__init__(
            f"the store {where} has schema version {version or 'none'}, and this program needs"
            f" {own_version}: {first}run `warpseal store upgrade` first; a copy of a SQLite file,"
            f" .before-{own_version}, stays beside it until a daemon has served with the new one"
        )


class StoreInUse(StartupError):
    """Another process uses the store.

    users: names of the processes.
    pid: process id of the first user, if it is known.
    """

    def __init__(self, where: str, users: tuple[str, ...], pid: int | None = None) -> None:
        names = ", ".join(users) or "another process"
        super().__init__(
            f"the store {where} is in use by {names}: stop it first, or use another store-url"
        )
        self.pid = pid


class StoreNetworkMismatch(StartupError):
    """An import has messages of one network, and the store is of another one."""

    def __init__(self, network_id: int, expected: int) -> None:
        super().__init__(
            f"the file has messages of network {network_id}, and the store is of network"
            f" {expected}: import it into the store of its own network (--network, --data-dir or"
            " --store-url)"
        )


class BlockRangesMismatch(Exception):
    """Blocks do not continue the blocks read before: they are of another chain, or forged."""
