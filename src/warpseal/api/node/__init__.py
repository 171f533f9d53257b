"""The node interfaces under `/ext`: administration, health, validators; what is common to them and to EVM RPC."""
