"""The gRPC API: what the paths of signing and of events do, over another protocol.

Start at `calls.py`.
"""

import os

# Before the library is loaded: its own log lines would stand between those of the daemon, whatever
# their form, and its handlers are not for processes that only start others.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
