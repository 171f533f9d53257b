"""The administration endpoint, `admin.*`: aliases, loggers, plugins, profiles.

Source of truth: the specification's administration API; texts and quirks of avalanchego
`api/admin/service.go`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.api.node.endpoints import Method, NoParams
from warpseal.api.node.router import Router
from warpseal.api.rpc.jsonrpc_gorilla import BAD_ARGUMENT
from warpseal.errors import CallRefused
from warpseal.ops.logs.loggers import LEVELS, DaemonLoggers
from warpseal.ops.plugins.registry import LoadedVMs
from warpseal.ops.profiles.profiler import Profiler
from warpseal.resources.aliases import MAX_ALIAS_CHARACTERS, ChainAliases, InvalidAlias, is_reserved
from warpseal.warp.ids import ID_BYTES, ChainID, MalformedID, cb58_decode, id_text

NAME: Final = "admin"
CHAINS: Final = "bc/"
Done = Mapping[str, Any]
DONE: Final[Done] = {}
_BASE58_ALPHABET: Final = frozenset("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
_MAX_ID_CHARACTERS: Final = 256


class AliasParams(msgspec.Struct):
    """admin.alias.

    endpoint: The path behind /ext/.
    """

    endpoint: str = ""
    alias: str = ""


class AliasChainParams(msgspec.Struct):
    """admin.aliasChain.

    chain: The id or an alias of the chain.
    """

    chain: str = ""
    alias: str = ""


class ChainParams(msgspec.Struct):
    """admin.getChainAliases.

    chain: The id of the chain.
    """

    chain: str = ""


class LoggerParams(msgspec.Struct, rename="camel"):
    """admin.getLoggerLevel."""

    logger_name: str = ""


class LevelParams(msgspec.Struct, rename="camel"):
    """admin.setLoggerLevel; an empty text means that the caller gave no level."""

    logger_name: str = ""
    log_level: str = ""
    display_level: str = ""


class AdminMethods(Struct, frozen=True):
    """The methods of `admin`, and the parts of the daemon that they read and change.

    load_plugins: Loads the plugins that are not loaded yet, or raises CallRefused.
    """

    router: Router
    aliases: ChainAliases
    loggers: DaemonLoggers
    load_plugins: Callable[[], Awaitable[LoadedVMs]]
    profiler: Profiler

    def methods(self) -> Mapping[str, Method[Any]]:
        """Return the methods by name."""
        return {
            "alias": Method(AliasParams, self.alias),
            "aliasChain": Method(AliasChainParams, self.alias_chain),
            "getChainAliases": Method(ChainParams, self.chain_aliases),
            "getLoggerLevel": Method(LoggerParams, self.logger_level),
            "setLoggerLevel": Method(LevelParams, self.set_logger_level),
            "loadVMs": Method(NoParams, self.load_vms),
            "startCPUProfiler": self._profiling(self.profiler.start_cpu),
            "stopCPUProfiler": self._profiling(self.profiler.stop_cpu),
            "memoryProfile": self._profiling(self.profiler.write_memory),
            "lockProfile": self._profiling(self.profiler.write_locks),
            "stacktrace": self._profiling(self.profiler.write_stacks),
        }

    async def alias(self, params: AliasParams) -> Done:
        """Let /ext/<alias> and all its sub-routes reach an endpoint. Raises CallRefused."""
        _check_length(params.alias)
        if params.alias.startswith(CHAINS) and is_reserved(params.alias.removeprefix(CHAINS)):
            raise CallRefused(f"alias is a name that chains have without it: {params.alias}")
        self.router.alias(params.endpoint, params.alias)
        return DONE

    async def alias_chain(self, params: AliasChainParams) -> Done:
        """Give a chain an alias that works in parameters and in paths. Raises CallRefused."""
        _check_length(params.alias)
        try:
            chain_id = self.aliases.resolve(params.chain)
            self.aliases.add_alias(chain_id, params.alias)
        except InvalidAlias as error:
            raise CallRefused(str(error)) from None
        self.router.alias(CHAINS + id_text(chain_id), CHAINS + params.alias)
        return DONE

    async def chain_aliases(self, params: ChainParams) -> Done:
        """Return the aliases of a chain, which its id must name. Raises CallRefused."""
        return {"aliases": list(self.aliases.aliases_of(_parse_chain_id(params.chain)))}

    async def logger_level(self, params: LoggerParams) -> Done:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        levels = self.loggers.levels(params.logger_name)
        content = {
            name: {"logLevel": level.log.upper(), "displayLevel": level.display.upper()}
            for name, level in levels.items()
        }
        return {"loggerLevels": content}

    async def set_logger_level(self, params: LevelParams) -> Done:
        """Change the levels of one logger, or of all. Raises CallRefused."""
        if not params.log_level and not params.display_level:
            raise CallRefused("need to specify either displayLevel or logLevel")
        log_level, display_level = _level(params.log_level), _level(params.display_level)
        self.loggers.set_levels(params.logger_name, log_level, display_level)
        return DONE

    async def load_vms(self, params: NoParams) -> Done:
        """Load the plugins that are new. Raises CallRefused."""
        loaded = await self.load_plugins()
        content: dict[str, Any] = {
            "newVMs": {vm_id: list(aliases) for vm_id, aliases in loaded.new_vms.items()}
        }
        if loaded.failed_vms:
            content["failedVMs"] = dict(loaded.failed_vms)
        return content

    def _profiling(self, step: Callable[[], Awaitable[None]]) -> Method[NoParams]:
        async def call(params: NoParams) -> Done:
            await step()
            return DONE

        return Method(NoParams, call)


def _check_length(alias: str) -> None:
    if len(alias) > MAX_ALIAS_CHARACTERS:
        raise CallRefused("alias length is too long")


def _level(name: str) -> str | None:
    """Return the name of a level in lower case; None for an empty text. Raises CallRefused."""
    if name and name.lower() not in LEVELS:
        raise CallRefused(BAD_ARGUMENT)
    return name.lower() or None


def _parse_chain_id(text: str) -> ChainID:
    """Return the id of base58-check text.

    Raises CallRefused with the text of avalanchego's `utils/cb58`.
    """
    bad = next((char for char in text if char not in _BASE58_ALPHABET), None)
    if not text:
        raise CallRefused("base58 decoding error: zero length string")
    if bad is not None and ord(bad) > 127:
        raise CallRefused("base58 decoding error: high-bit set on invalid digit")
    if bad is not None:
        raise CallRefused(f"base58 decoding error: invalid base58 digit ({bad!r})")
    if len(text) > _MAX_ID_CHARACTERS:
        raise CallRefused(f"{len(text)} characters are more than any id has")
    try:
        raw = cb58_decode(text)
    except MalformedID as error:
        reason = "invalid input checksum"
        if "too short" in error.reason:
            reason = "input string is smaller than the checksum size"
        raise CallRefused(reason) from None
    if len(raw) != ID_BYTES:
        raise CallRefused(f"invalid hash length: expected {ID_BYTES} bytes but got {len(raw)}")
    return ChainID(raw)
