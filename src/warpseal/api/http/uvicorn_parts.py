"""The parts of uvicorn that serve HTTP, imported without its command line.

The package imports that by itself, with click and multiprocessing: 10 ms of each start and 1.5 MiB.
"""

from warpseal.runtime.lazy import imported_without

__all__ = ["Config", "HttpToolsProtocol", "RequestResponseCycle", "ServerState"]

with imported_without("uvicorn.main"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
    from uvicorn.server import ServerState
