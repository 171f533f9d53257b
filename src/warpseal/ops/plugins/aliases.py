"""Names of virtual machines: those that every node knows, and those of the operator's file.

Source of truth: avalanchego `genesis/aliases.go`, `utils/constants/vm_ids.go`; api-clients notes 6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NewType

import msgspec

from warpseal.errors import StartupError
from warpseal.warp.ids import ID_BYTES, MalformedID, cb58_decode

VMID = NewType("VMID", bytes)


def _named(letters: bytes) -> VMID:
    return VMID(letters.ljust(ID_BYTES, b"\x00"))


BUILT_IN: Final[Mapping[VMID, tuple[str, ...]]] = MappingProxyType(
    {_named(b"platformvm"): ("platform",), _named(b"avm"): ("avm",), _named(b"evm"): ("evm",)}
)
"""The virtual machines that need no plugin."""

_MAX_FILE_BYTES: Final = 1024 * 1024


class VMAliases:
    """Which virtual machine a name stands for, and what else it is called."""

    def __init__(self, more: Mapping[VMID, tuple[str, ...]] = MappingProxyType({})) -> None:
        self._names: dict[VMID, tuple[str, ...]] = dict(BUILT_IN)
        for vm_id, names in more.items():
            self._names[vm_id] = (*self._names.get(vm_id, ()), *names)
        self._ids: dict[str, VMID] = {}
        for vm_id, names in self._names.items():
            for name in names:
                if self._ids.setdefault(name, vm_id) != vm_id:
                    raise StartupError(f"{name!r} is an alias of two virtual machines")

    def of(self, vm_id: VMID) -> tuple[str, ...]:
        """Return the aliases of a virtual machine."""
        return self._names.get(vm_id, ())

    def find(self, name: str) -> VMID:
        """Return the id that a name stands for: an alias, or the id itself in base58-check. Raises MalformedID."""
        known = self._ids.get(name)
        return parse_vm_id(name) if known is None else known


def parse_vm_id(text: str) -> VMID:
    """Return the 32 bytes of a base58-check id. Raises MalformedID."""
    raw = cb58_decode(text)
    if len(raw) != ID_BYTES:
        raise MalformedID(text, f"{len(raw)} bytes are no id")
    return VMID(raw)


def read_aliases(file: Path | None) -> VMAliases:
    """Return the built-in aliases and those of the file, which names each id's list. Raises StartupError."""
    if file is None:
        return VMAliases()
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise StartupError(f"vm-aliases-file: {file} is larger than {_MAX_FILE_BYTES} bytes")
        listed = msgspec.json.decode(file.read_bytes(), type=dict[str, tuple[str, ...]])
        return VMAliases({parse_vm_id(text): names for text, names in listed.items()})
    except (OSError, msgspec.MsgspecError, MalformedID) as error:
        raise StartupError(f"vm-aliases-file: {file} cannot be used: {error}") from error
