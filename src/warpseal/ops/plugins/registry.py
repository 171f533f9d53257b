"""The loaded virtual machines: those that are built in, and each plugin that reported its version.

Source of truth: the specification of `admin.loadVMs`; avalanchego `vms/registry`,
`genesis/aliases.go`, `utils/constants/vm_ids.go`; api-clients notes 6.3.1, 6.7. Unlike the node,
the next call tries a failed plugin again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NewType

import msgspec
from msgspec import Struct

from warpseal.errors import CallRefused, StartupError
from warpseal.ops.settings import RPC_PROTOCOL_VERSION, PluginSettings
from warpseal.runtime.process import os_error_text
from warpseal.warp.ids import ID_BYTES, MalformedID, cb58_decode, cb58_encode

if TYPE_CHECKING:
    from warpseal.ops.plugins.probe import PluginFailed

log = logging.getLogger(__name__)

_MAX_FILES: Final = 1000

NodeProtocol = Callable[[], Awaitable[int | None]]
"""Returns the protocol version of a node; None if no node answers."""
ProbePlugin = Callable[[Path, PluginSettings, int], Awaitable["str | PluginFailed"]]
"""Returns the version that a plugin reports, or the failure: see `probe_plugin`."""


class LoadedVMs(Struct, frozen=True):
    """The outcome of a load.

    new_vms: aliases of each new virtual machine, by its id in base58-check.
    failed_vms: error text of each plugin that could not be loaded, by its id.
    """

    new_vms: Mapping[str, tuple[str, ...]]
    failed_vms: Mapping[str, str]


class PluginRegistry:
    """The plugins of a folder.

    node_protocol: returns the version of the protocol that a node reports; RPC_PROTOCOL_VERSION
        holds if no node does.
    """

    def __init__(
        self,
        settings: PluginSettings,
        folder: Path,
        aliases: VMAliases,
        node_protocol: NodeProtocol,
        probe: ProbePlugin,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._aliases = aliases
        self._node_protocol = node_protocol
        self._probe = probe
        self._loaded = set(BUILT_IN)
        self._lock = asyncio.Lock()

    async def load(self) -> LoadedVMs:
        """Probe the plugins that are not loaded.

        Raises CallRefused, with the node's text, before any start.
        """
        async with self._lock:
            paths = await asyncio.to_thread(self._find_plugins)
            candidates = {vm_id: path for vm_id, path in paths.items() if vm_id not in self._loaded}
            new_vms: dict[str, tuple[str, ...]] = {}
            failed_vms: dict[str, str] = {}
            if not candidates:
                return LoadedVMs(new_vms, failed_vms)
            version = await self._node_protocol() or RPC_PROTOCOL_VERSION
            for vm_id, path in candidates.items():
                outcome = await self._probe(path, self._settings, version)
                if isinstance(outcome, str):
                    self._loaded.add(vm_id)
                    new_vms[cb58_encode(vm_id)] = self._aliases.aliases_of(vm_id)
                else:
                    failed_vms[cb58_encode(vm_id)] = str(outcome)
                log.info("plugin probed", extra={"plugin": path.name, "outcome": str(outcome)})
        return LoadedVMs(new_vms, failed_vms)

    def _find_plugins(self) -> dict[VMID, Path]:
        """Return the path of each plugin by its id; directories and hidden files are ignored."""
        try:
            with os.scandir(self._folder) as entries:
                files = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._settings.plugin_dir is None:
                return {}
            raise CallRefused(f"open {self._folder}: {os_error_text(error)}") from error
        names = sorted(name for name in files if not name.startswith("."))[:_MAX_FILES]
        return {self._vm_id(Path(name).stem): self._folder.absolute() / name for name in names}

    def _vm_id(self, name: str) -> VMID:
        try:
            return self._aliases.find(name)
        except MalformedID as error:
            raise CallRefused(f"invalid vmID: {dumps(name, ensure_ascii=False)}") from error


VMID = NewType("VMID", bytes)


BUILT_IN: Final[Mapping[VMID, tuple[str, ...]]] = MappingProxyType(
    {
        VMID(name.ljust(ID_BYTES, b"\x00")): (alias,)
        for name, alias in ((b"platformvm", "platform"), (b"avm", "avm"), (b"evm", "evm"))
    }
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
                    raise StartupError(
                        f'{VM_ALIASES_NAME}: "{name}" is an alias of two virtual machines'
                    )

    def aliases_of(self, vm_id: VMID) -> tuple[str, ...]:
        """Return the aliases of a virtual machine."""
        return self._names.get(vm_id, ())

    def find(self, name: str) -> VMID:
        """Return the id of a virtual machine from an alias, or from its id in base58-check.

        Raises MalformedID.
        """
        vm_id = self._ids.get(name)
        return parse_vm_id(name) if vm_id is None else vm_id


def parse_vm_id(text: str) -> VMID:
    """Return the 32 bytes of a base58-check id. Raises MalformedID."""
    raw = cb58_decode(text)
    if len(raw) != ID_BYTES:
        raise MalformedID(text, f"{len(raw)} bytes are no id")
    return VMID(raw)


def read_aliases(file: Path) -> VMAliases:
    """Return the built-in aliases and those of a file, which need not exist.

    file: JSON object of lists of aliases, by VM id.
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
