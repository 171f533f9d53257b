"""The parts of uvicorn that serve HTTP, imported without its command line.

The package imports that by itself, with click and multiprocessing: 10 ms of each start and 1.5 MiB.
"""

import sys
from types import ModuleType
from typing import Final

__all__ = ["Config", "HttpToolsProtocol", "RequestResponseCycle", "ServerState"]

_COMMAND_LINE: Final = "uvicorn.main"
_placeholder = ModuleType(_COMMAND_LINE)
# The package takes a few names from it, which then have no value.
vars(_placeholder)["__getattr__"] = lambda name: None
sys.modules.setdefault(_COMMAND_LINE, _placeholder)

from uvicorn.config import Config  # noqa: E402 - the lines above are for it
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

if sys.modules[_COMMAND_LINE] is _placeholder:
    del sys.modules[_COMMAND_LINE]
