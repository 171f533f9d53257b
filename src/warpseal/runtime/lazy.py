"""Modules that are imported when an attribute of them is first read: a daemon that never uses them
does not load them.

The module that needs one declares it below its imports, where type checkers and import rules see it
as well:

    if TYPE_CHECKING:
        import psycopg
    else:
        psycopg = LazyModule("psycopg")

Functions import nothing otherwise, except a library that may be missing, in a `try`. Python 3.15
has the statement `lazy import` for this (PEP 810).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """The module of a full name.

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
