"""The BLS interface as it is with each backend, side by side in one process."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from warpseal.bls import LIBRARIES


def installed_backends() -> list[str]:
    """Return the backends whose library is installed; blspy has no packages for Python 3.13 and later."""
    return [name for name, library in LIBRARIES.items() if importlib.util.find_spec(library) is not None]


def load_interface(backend: str) -> ModuleType:
    """Return a second `warpseal.bls` that uses a backend; types and errors are those of the first."""
    spec = importlib.util.find_spec("warpseal.bls")
    assert spec is not None
    assert spec.loader is not None
    interface = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPSEAL_BLS", backend)
        spec.loader.exec_module(interface)
    assert backend == interface.BACKEND
    return interface
