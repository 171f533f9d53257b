"""Descriptions of contracts that the operator wrote: one JSON file for each contract,
`<chain>/<address>.json`.

A changed file counts within seconds. docs/data-api.md describes the fields.
"""

from __future__ import annotations

import asyncio
import logging
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from warpseal.errors import StartupError
from warpseal.resources.evm import ContractDescription
from warpseal.runtime.process import os_error_text

log = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 16 * 1024
"""So that the descriptions of a page of 100 contracts stay below 2 MiB."""
CONTRACTS_FOLDER: Final = "contracts"
"""Below the data folder."""
MAX_FILES: Final = 100_000
RELOAD_S: Final = 5.0
_FILE_NAME: Final = re.compile(r"0[xX][0-9a-fA-F]{40}\.json")


class ContractInfo(
    ContractDescription, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True
):
    """The operator's description of a contract.

    hidden: Whether the contract is spam, whose tokens are not listed by owner.
    """

    hidden: bool = False


class DescribedContracts(Struct, frozen=True):
    """The described contracts of one chain, by address.

    hidden: The addresses of contracts that are spam.
    """

    infos: Mapping[bytes, ContractInfo] = field(default_factory=dict)
    hidden: frozenset[bytes] = frozenset()

    def of(self, address: str) -> ContractInfo | None:
        """Return the description of a contract.

        address: The address in the spelling of responses.
        """
        return self.infos.get(bytes.fromhex(address[2:])) if self.infos else None


_NONE: Final = DescribedContracts()
_Stamp = tuple[int, int, int]


class ContractInfoFolder:
    """The descriptions of contracts in the files of a folder; without a folder there are none.

    `run` reads files again that have changed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[_Stamp, ContractInfo | None]] = {}
        self._by_name: dict[str, DescribedContracts] = {}

    def load(self) -> None:
        """Read all files that are new or have changed.

        A file that cannot be used is logged once for each change, and its description stays as it
        was. Raises StartupError if the folder cannot be read.
        """
        if self._folder is None:
            return
        try:
            files = sorted(self._folder.glob("*/*.json"))
        except OSError as error:
            raise StartupError(f"{self._folder} cannot be read: {os_error_text(error)}") from error
        if len(files) > MAX_FILES:
            log.warning(
                "too many descriptions of contracts",
                extra={"files": len(files), "limit": MAX_FILES},
            )
        before, self._files = self._files, {}
        for file in files[:MAX_FILES]:
            self._read(file, before.get(file))
        if self._files != before:
            infos: dict[str, dict[bytes, ContractInfo]] = {}
            for file, (_, info) in self._files.items():
                if info is not None:
                    infos.setdefault(file.parent.name, {})[bytes.fromhex(file.stem[2:])] = info
            self._by_name = {name: _described(contracts) for name, contracts in infos.items()}

    def contracts(self, names: Iterable[str]) -> DescribedContracts:
        """Return the described contracts of a chain.

        names: The ids and aliases of the chain, each of which may name a folder.
        """
        groups = [self._by_name[name] for name in names if name in self._by_name]
        if len(groups) <= 1:
            return groups[0] if groups else _NONE
        infos = {
            address: info
            for contracts in reversed(groups)
            for address, info in contracts.infos.items()
        }
        return _described(infos)

    async def run(self) -> None:
        """Read changed files until cancelled."""
        is_readable = True
        while self._folder is not None:
            await asyncio.sleep(RELOAD_S)
            try:
                await asyncio.to_thread(self.load)
            except StartupError as error:
                if is_readable:
                    reason = {"reason": str(error)}
                    log.warning("descriptions of contracts cannot be read", extra=reason)
                is_readable = False
            else:
                is_readable = True

    def _read(self, file: Path, before: tuple[_Stamp, ContractInfo | None] | None) -> None:
        try:
            status = file.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if before is not None and before[0] == stamp:
                self._files[file] = before
                return
            self._files[file] = stamp, before[1] if before is not None else None
            if not _FILE_NAME.fullmatch(file.name):
                raise ValueError("the name is not 0x, 40 hexadecimal digits and .json")
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is no file")
            if status.st_size > MAX_FILE_BYTES:
                raise ValueError(f"longer than {MAX_FILE_BYTES} bytes")
            with file.open("rb") as opened:
                content = opened.read(MAX_FILE_BYTES + 1)
            self._files[file] = stamp, msgspec.json.decode(content, type=ContractInfo)
        except FileNotFoundError:
            # Another process has removed it since the listing.
            pass
        except (OSError, ValueError, RecursionError) as error:
            reason = os_error_text(error) if isinstance(error, OSError) else str(error)
            log.warning(
                "description of a contract cannot be used",
                extra={"file": str(file), "reason": reason},
            )


def _described(infos: Mapping[bytes, ContractInfo]) -> DescribedContracts:
    hidden = frozenset([address for address, info in infos.items() if info.hidden])
    return DescribedContracts(infos, hidden)
