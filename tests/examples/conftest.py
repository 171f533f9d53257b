"""The tests of relayers are collected where npm could install the EVM node and the compiler of the
contracts.
"""

from __future__ import annotations

from tests.forwarding.evm import anvil
from tests.solidity import compiled

collect_ignore = (
    [] if anvil.binary() is not None and compiled.is_installed() else ["test_relayer.py"]
)
