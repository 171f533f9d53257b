"""Keys of what the daemon is as a node: administration, health, plugins, profiles and logs."""

from __future__ import annotations

from typing import Final

from warpseal.config import values as v
from warpseal.config.key import HOUR_S, Key

NODE_KEYS: Final = (
    Key("api-admin-enabled", "node_api.admin_enabled", v.boolean, "serve /ext/admin", "BOOL", node=True),
    Key(
        "admin-token",
        "node_api.admin_token",
        v.secret,
        "who has it may use /ext/admin; without one, this machine only (never a flag)",
        "TOKEN",
        secret=True,
    ),
    Key("api-health-enabled", "node_api.health_enabled", v.boolean, "serve /ext/health", "BOOL", node=True),
    Key(
        "http-allowed-hosts",
        "node_api.allowed_hosts",
        v.list_of(v.text),
        "names by which clients may call /ext; addresses always pass, * is any",
        "NAMES",
        node=True,
    ),
    Key(
        "chain-aliases-file",
        "node_api.chain_aliases_file",
        v.optional_path,
        "JSON: blockchain id -> aliases",
        "FILE",
        node=True,
    ),
    Key("vm-aliases-file", "plugins.aliases_file", v.optional_path, "JSON: VM id -> aliases", "FILE", node=True),
    Key(
        "plugin-dir", "plugins.plugin_dir", v.optional_path, "VM plugins; unset: plugins in data-dir", "DIR", node=True
    ),
    Key(
        "plugin-protocol-version",
        "plugins.protocol_version",
        v.integer(0, 10**6),
        "version of the protocol that VM plugins have to speak; 0: that of the info node",
    ),
    Key(
        "profile-dir",
        "profiles.profile_dir",
        v.optional_path,
        "profiles; unset: profiles in data-dir",
        "DIR",
        node=True,
    ),
    Key(
        "memory-profile-frames",
        "profiles.memory_frames",
        v.integer(0, 100),
        "calls of each allocation that are kept, which costs much; 0: none",
    ),
    Key(
        "health-check-frequency",
        "health.check_frequency_s",
        v.duration(0.1, HOUR_S),
        "how often health is checked: 30s, or seconds",
        "DURATION",
        node=True,
    ),
    Key(
        "health-max-lag",
        "health.max_lag_s",
        v.duration(1, 24 * HOUR_S),
        "a followed chain that is further behind is unhealthy: 2m, or seconds",
        "DURATION",
    ),
    Key(
        "log-display-level",
        "log_display_level",
        v.one_of(*v.LOG_LEVELS),
        "how much of the log is displayed; unset: as log-level",
        "LEVEL",
        node=True,
    ),
    Key(
        "log-dir",
        "log_dir",
        v.optional_path,
        "folder of the log files, one for each logger; unset: none",
        "DIR",
        node=True,
    ),
)
