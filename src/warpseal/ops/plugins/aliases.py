"""Aliases of virtual machines: the built-in ones, and those of the operator's file in the data folder.

Source of truth: avalanchego `genesis/aliases.go`, `utils/constants/vm_ids.go`; api-clients notes 6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NewType

import msgspec

from warpseal.errors import StartupError
from warpseal.runtime.process import os_error_text
from warpseal.warp.ids import ID_BYTES, MalformedID, cb58_decode

VMID = NewType("VMID", bytes)


def _built_in_id(name: bytes) -> VMID:
    return VMID(name.ljust(ID_BYTES, b"\x00"))


BUILT_IN: Final[Mapping[VMID, tuple[str, ...]]] = MappingProxyType(
    {_built_in_id(b"platformvm"): ("platform",), _built_in_id(b"avm"): ("avm",), _built_in_id(b"evm"): ("evm",)}
)
"""Virtual machines that need no plugin, with their aliases."""

VM_ALIASES_NAME: Final = "vm-aliases.json"
_MAX_FILE_BYTES: Final = 1024 * 1024


class VMAliases:
    """The aliases of each virtual machine, and the virtual machine of each alias."""

    def __init__(self, additional: Mapping[VMID, tuple[str, ...]] = MappingProxyType({})) -> None:
        self._names: dict[VMID, tuple[str, ...]] = dict(BUILT_IN)
        for vm_id, names in additional.items():
            self._names[vm_id] = (*self._names.get(vm_id, ()), *names)
        self._ids: dict[str, VMID] = {}
        for vm_id, names in self._names.items():
            for name in names:
                if self._ids.setdefault(name, vm_id) != vm_id:
                    raise StartupError(f'{VM_ALIASES_NAME}: "{name}" is an alias of two virtual machines')

    def aliases_of(self, vm_id: VMID) -> tuple[str, ...]:
        """Return the aliases of a virtual machine."""
        return self._names.get(vm_id, ())

    def find(self, name: str) -> VMID:
        """Return the id of a virtual machine from an alias, or from its id in base58-check. Raises MalformedID."""
        vm_id = self._ids.get(name)
        return parse_vm_id(name) if vm_id is None else vm_id


def parse_vm_id(text: str) -> VMID:
    """Return the 32 bytes of a base58-check id. Raises MalformedID."""
    raw = cb58_decode(text)
    if len(raw) != ID_BYTES:
        raise MalformedID(text, f"{len(raw)} bytes are no id")
    return VMID(raw)


def read_aliases(file: Path) -> VMAliases:
    """Return the built-in aliases and those of a JSON file (VM id to list of aliases), if there is one.

    Raises StartupError.
    """
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise StartupError(f"{file} is larger than {_MAX_FILE_BYTES} bytes")
        aliases = msgspec.json.decode(file.read_bytes(), type=dict[str, tuple[str, ...]])
        return VMAliases({parse_vm_id(text): names for text, names in aliases.items()})
    except (FileNotFoundError, NotADirectoryError):
        return VMAliases()
    except OSError as error:
        raise StartupError(f"{file} cannot be read: {os_error_text(error)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise StartupError(f"{file} is not an object of lists by VM id: {error}") from error
