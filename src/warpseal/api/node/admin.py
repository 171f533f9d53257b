"""The administration endpoint, `admin.*`: aliases, loggers, plugins, profiles.

Source of truth: the specification's administration API; texts and quirks of avalanchego `api/admin/service.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.api.node.cb58_errors import chain_id_of
from warpseal.api.node.jsonrpc_endpoint import Method, NoParams
from warpseal.api.node.jsonrpc_gorilla import BAD_ARGUMENT
from warpseal.api.node.ports import Loggers, Plugins
from warpseal.api.node.router import Router
from warpseal.errors import CallRefused
from warpseal.history.aliases import MAX_ALIAS_CHARACTERS, ChainAliases, InvalidAlias, is_reserved
from warpseal.ops.logs.loggers import LEVELS
from warpseal.ops.profiles.ipc import ProfilerControl
from warpseal.warp.ids import id_text

NAME: Final = "admin"
CHAINS: Final = "bc/"
Done = Mapping[str, Any]
DONE: Final[Done] = {}


class AliasParams(msgspec.Struct):
    """admin.alias. endpoint: what stands behind /ext/."""

    endpoint: str = ""
    alias: str = ""


class AliasChainParams(msgspec.Struct):
    """admin.aliasChain. chain: an id or an alias."""

    chain: str = ""
    alias: str = ""


class ChainParams(msgspec.Struct):
    """admin.getChainAliases. chain: an id."""

    chain: str = ""


class LoggerParams(msgspec.Struct, rename="camel"):
    """admin.getLoggerLevel."""

    logger_name: str = ""


class LevelParams(msgspec.Struct, rename="camel"):
    """admin.setLoggerLevel; an empty text is one that was not given."""

    logger_name: str = ""
    log_level: str = ""
    display_level: str = ""


@dataclass(frozen=True, slots=True)
class AdminServices:
    """What administration works on."""

    router: Router
    aliases: ChainAliases
    loggers: Loggers
    plugins: Plugins
    profiler: ProfilerControl


class AdminMethods:
    """The methods of `admin`."""

    def __init__(self, services: AdminServices) -> None:
        self._router = services.router
        self._aliases = services.aliases
        self._loggers = services.loggers
        self._plugins = services.plugins
        self._profiler = services.profiler

    def methods(self) -> Mapping[str, Method[Any]]:
        """Return them by name."""
        own: dict[str, Method[Any]] = {
            "alias": Method(AliasParams, self.alias),
            "aliasChain": Method(AliasChainParams, self.alias_chain),
            "getChainAliases": Method(ChainParams, self.chain_aliases),
            "getLoggerLevel": Method(LoggerParams, self.logger_level),
            "setLoggerLevel": Method(LevelParams, self.set_logger_level),
            "loadVMs": Method(NoParams, self.load_vms),
        }
        return own | _profiling(self._profiler)

    async def alias(self, params: AliasParams) -> Done:
        """Let /ext/<alias> and all its sub-routes reach an endpoint. Raises CallRefused."""
        _check_length(params.alias)
        if params.alias.startswith(CHAINS) and is_reserved(params.alias.removeprefix(CHAINS)):
            raise CallRefused(f"alias is a name that chains have without it: {params.alias}")
        self._router.alias(params.endpoint, params.alias)
        return DONE

    async def alias_chain(self, params: AliasChainParams) -> Done:
        """Let an alias stand for a chain, in paths too. Raises CallRefused."""
        _check_length(params.alias)
        try:
            chain_id = self._aliases.resolve(params.chain)
            self._aliases.add_alias(chain_id, params.alias)
        except InvalidAlias as error:
            raise CallRefused(str(error)) from None
        self._router.alias(CHAINS + id_text(chain_id), CHAINS + params.alias)
        return DONE

    async def chain_aliases(self, params: ChainParams) -> Done:
        """Return the aliases of a chain, which only its id names here. Raises CallRefused."""
        return {"aliases": list(self._aliases.aliases_of(chain_id_of(params.chain)))}

    async def logger_level(self, params: LoggerParams) -> Done:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        levels = self._loggers.levels(params.logger_name)
        content = {
            name: {"logLevel": level.log_level, "displayLevel": level.display_level} for name, level in levels.items()
        }
        return {"loggerLevels": content}

    async def set_logger_level(self, params: LevelParams) -> Done:
        """Change the levels of one logger, or of all. Raises CallRefused."""
        if not params.log_level and not params.display_level:
            raise CallRefused("need to specify either displayLevel or logLevel")
        log_level, display_level = _level(params.log_level), _level(params.display_level)
        await self._loggers.set_levels(params.logger_name, log_level, display_level)
        return DONE

    async def load_vms(self, params: NoParams) -> Done:
        """Load the plugins that are new. Raises CallRefused."""
        loaded = await self._plugins.load()
        content: dict[str, Any] = {"newVMs": {vm_id: list(aliases) for vm_id, aliases in loaded.new_vms.items()}}
        if loaded.failed_vms:
            content["failedVMs"] = dict(loaded.failed_vms)
        return content


def _profiling(profiler: ProfilerControl) -> dict[str, Method[Any]]:
    return {
        "startCPUProfiler": Method(NoParams, _done(profiler.start_cpu)),
        "stopCPUProfiler": Method(NoParams, _done(profiler.stop_cpu)),
        "memoryProfile": Method(NoParams, _done(profiler.write_memory)),
        "lockProfile": Method(NoParams, _done(profiler.write_locks)),
        "stacktrace": Method(NoParams, _done(profiler.write_stacks)),
    }


def _done(act: Any) -> Any:
    async def call(params: NoParams) -> Done:
        await act()
        return DONE

    return call


def _check_length(alias: str) -> None:
    if len(alias) > MAX_ALIAS_CHARACTERS:
        raise CallRefused("alias length is too long")


def _level(given: str) -> str | None:
    """Return a level's name in lower case; None where none was given. Raises CallRefused."""
    if given and given.lower() not in LEVELS:
        raise CallRefused(BAD_ARGUMENT)
    return given.lower() or None
