"""The daemon as its operator sees it: health checks, profiles, plugins, logs, and commands between its processes."""
