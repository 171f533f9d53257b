"""Plugin directories with real executables in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from warpseal.ops.plugins.probe import probe_plugin
from warpseal.ops.plugins.registry import PluginRegistry, VMAliases
from warpseal.ops.settings import OutputBounds, PluginSettings
from warpseal.warp.ids import cb58_encode

SOURCE = Path(__file__).with_name("machine.py")


def vm_id(number: int) -> str:
    """Return the id of the n-th virtual machine of a test."""
    return cb58_encode(number.to_bytes(32, "big"))


def install(folder: Path, name: str, character: str = "good", protocol_version: int = 47) -> Path:
    """Write a plugin into the folder; see `machine.py` for the characters."""
    text = SOURCE.read_text().replace('CHARACTER = "good"', f"CHARACTER = {character!r}")
    text = text.replace("PROTOCOL_VERSION = 47", f"PROTOCOL_VERSION = {protocol_version}")
    folder.mkdir(exist_ok=True)
    file = folder / name
    # Renamed into place: an executable that is being written cannot be started.
    draft = folder / f".{name}.draft"
    draft.write_text(f"#!{sys.executable}\n{text}")
    draft.chmod(0o755)
    return draft.rename(file)


def read_events(plugin: Path) -> list[str]:
    """Return the events that a plugin's process wrote."""
    file = plugin.with_name(f".{plugin.name}.events")
    return file.read_text().splitlines() if file.exists() else []


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def registry(
    folder: Path,
    *,
    handshake_s: float = 20.0,
    stop_s: float = 5.0,
    aliases: VMAliases | None = None,
) -> PluginRegistry:
    """Return a registry of the folder that asks no node."""
    settings = PluginSettings(
        plugin_dir=folder,
        output=OutputBounds(bytes=20_000, lines=100, line_bytes=80),
        handshake_s=handshake_s,
        call_s=20.0,
        stop_s=stop_s,
    )
    return PluginRegistry(
        settings, folder, aliases or VMAliases(), node_protocol=no_node, probe=probe_plugin
    )


async def no_node() -> int | None:
    """Return None, as if no node answered."""
    return None


def open_files() -> int:
    """Return how many files this process has open, if the system reports it."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0
