"""Calls that are passed on to nodes: `evm/` for EVM chains, `primary/` for the primary network."""
