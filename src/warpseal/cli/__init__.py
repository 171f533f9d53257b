"""The command line: commands, logging set-up, exit codes."""
