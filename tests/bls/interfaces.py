"""The BLS interface as it is with each backend, side by side in one process."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from warpseal.bls import LIBRARIES, is_installed


def installed_backends() -> list[str]:
    """Return the backends whose libraries are installed: all on Python 3.11 and 3.12, no blspy on
    later ones.
    """
    return [backend for backend in LIBRARIES if is_installed(backend)]


def load_interface(backend: str) -> ModuleType:
    """Return a second `warpseal.bls` over a backend, with the types and errors of the first."""
    spec = importlib.util.find_spec("warpseal.bls")
    assert spec is not None
    assert spec.loader is not None
    interface = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPSEAL_BLS", backend)
        spec.loader.exec_module(interface)
    assert backend == interface.BACKEND
    return interface
