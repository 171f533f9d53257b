"""Operation of the daemon: health checks, profiles, plugins, logs and commands between its
processes.
"""
