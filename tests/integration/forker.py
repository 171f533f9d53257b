"""A process that has imported the program and forks `warpseal …`, since the imports cost more than
most tests.

It has no threads and no event loop. `process.py` starts it and sends the commands.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

from warpseal.cli.main import COMMANDS, main

# What commands import late.
_LATE: Final = (
    "warpseal.daemon.app",
    "warpseal.daemon.start",
    "warpseal.indexer.indexer",
    "psycopg",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
)


def serve(connection: socket.socket) -> None:
    """Fork the commands that come over a connection, until it is closed.

    A command is its length in 4 bytes, with the descriptors of its standard streams and of a status
    pipe, and then the arguments and the environment in JSON. The status pipe gives a line with the
    pid and one with the exit code.
    """
    for module in {module.partition(".")[0] for module, _ in COMMANDS.values()} - {"demo"}:
        import_module(f"warpseal.cli.{module}")
    for module in _LATE:
        import_module(module)
    # A collection of garbage in a forked process would copy the memory of all modules.
    gc.freeze()
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if head else 0)[0]:
                pass
        if not head:
            return
        arguments, environ = json.loads(connection.recv(int.from_bytes(head), socket.MSG_WAITALL))
        if os.fork() == 0:
            connection.close()
            _watch(arguments, environ, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(
    arguments: list[str], environ: dict[str, str], stdin: int, stdout: int, stderr: int, status: int
) -> None:
    """Fork a command and report its pid and its end."""
    if (pid := os.fork()) == 0:
        os.close(status)
        os.setsid()
        for target, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environ)
        sys.exit(main(arguments))
    for descriptor in (stdin, stdout, stderr):
        os.close(descriptor)
    os.write(status, b"%d\n" % pid)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
