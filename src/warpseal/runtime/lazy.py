"""Imports at first use: the mechanism, and the list of libraries that are imported so.

A module of Warpseal imports what it uses at its top. The table of the daemon
(`daemon/subsystems.py`) imports a subsystem when it opens it, so that a daemon does not load those
that its configuration lacks. The libraries below are the exception: a module that most daemons load
needs them in a rare case, and they cost too much to be imported for that. Their figures are CPU
time and resident memory of the import, on top of a daemon that is ready.

Python 3.15 has the statement `lazy import` for this (PEP 810).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = [
    "LazyModule",
    "eth_abi",
    "eth_abi_errors",
    "import_late",
    "jinja2",
    "psycopg",
    "secp256k1_recovery",
    "x509",
]


class LazyModule(ModuleType):
    """A module that is imported when an attribute of it is first read.

    Reading an attribute raises ImportError if the module cannot be imported.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        # Unlike import_module, this has a line in the output of `-X importtime`.
        __import__(self.__name__)
        value = getattr(sys.modules[self.__name__], name)
        # Later reads cost what those of a module do, a tenth.
        setattr(self, name, value)
        return value


def import_late(*names: str) -> None:
    """Let modules that libraries import `from` their packages be imported when an attribute of them
    is first read.
    """
    for name in names:
        sys.modules.setdefault(name, LazyModule(name))


if TYPE_CHECKING:
    import jinja2
    import psycopg
    from btclib_libsecp256k1 import recovery as secp256k1_recovery
    from cryptography import x509
    from eth_abi import abi as eth_abi
    from eth_abi import exceptions as eth_abi_errors
else:
    # A store or an index on a server: 70 ms, 9 MiB. `store/` serves both databases.
    psycopg = LazyModule("psycopg")
    # The names and the URIs of tokens: 145 ms, 14 MiB. Messages are decoded beside them.
    eth_abi = LazyModule("eth_abi.abi")
    eth_abi_errors = LazyModule("eth_abi.exceptions")
    # The first landing page that is opened: 90 ms, 5.4 MiB with its template.
    jinja2 = LazyModule("jinja2")
    # A new identity, or one whose certificate is stored: 15 ms, 1 MiB.
    x509 = LazyModule("cryptography.x509")
    # Signers of indexed transactions: 4 ms, 0.8 MiB. Forecasts read the fee from the same package.
    secp256k1_recovery = LazyModule("btclib_libsecp256k1.recovery")
