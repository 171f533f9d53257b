"""One trial of one plugin: started, asked for its version, asked to end, and ended."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warpseal.ops.plugins.errors import NoHandshake, PluginFailed, WrongProtocol
from warpseal.ops.plugins.handshake import Engine, Told, engine, version_of
from warpseal.ops.plugins.output import PluginOutput
from warpseal.ops.plugins.process import PluginProcess, plugin_environment, running
from warpseal.ops.plugins.settings import PluginSettings

# For an answer that is on its way as the process ends.
_LAST_ANSWER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """How plugins are tried. protocol_version: the one that theirs has to be."""

    settings: PluginSettings
    protocol_version: int

    async def of(self, path: Path) -> str | PluginFailed:
        """Return what a plugin says its version is, or why it cannot be used. Nothing of it is left running."""
        output = PluginOutput(path.name, self.settings.output)
        async with engine(self.protocol_version) as serving:
            environment = plugin_environment(serving.address, os.environ)
            try:
                async with running(path, environment, output, stop_s=self.settings.stop_s) as process:
                    return await self._asked(path, process, serving)
            except PluginFailed as failure:
                return failure

    async def _asked(self, path: Path, process: PluginProcess, serving: Engine) -> str:
        told = await self._told(process, serving)
        if told.protocol_version != self.protocol_version:
            raise WrongProtocol(path, self.protocol_version, told.protocol_version)
        return await self._version(told.address, process)

    async def _told(self, process: PluginProcess, serving: Engine) -> Told:
        """Wait for the plugin's first word, no longer than its process lives. Raises NoHandshake."""
        first = (serving.told, process.ended)
        await asyncio.wait(first, timeout=self.settings.handshake_s, return_when=asyncio.FIRST_COMPLETED)
        if not serving.told.done():
            raise NoHandshake
        return serving.told.result()

    async def _version(self, address: str, process: PluginProcess) -> str:
        """Ask the plugin, which may end as it answers. Raises UnusableAddress, CallFailed, NoHandshake."""
        asking = asyncio.ensure_future(version_of(address, self.settings.call_s))
        try:
            await asyncio.wait((asking, process.ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((asking,), timeout=_LAST_ANSWER_S if process.ended.done() else None)
            if not asking.done():
                raise NoHandshake
            return asking.result()
        finally:
            asking.cancel()
