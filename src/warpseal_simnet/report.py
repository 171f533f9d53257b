"""The description of the simulated network as JSON, with a config for an aggregator."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpseal.warp.ids import PRIMARY_NETWORK, id_text, node_id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.listener import LOOPBACK
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import SimMessage, SimSubnet

if TYPE_CHECKING:
    from warpseal_simnet.network import SimulatedNetwork

# The reference tracks no more subnets from its config.
_MAX_TRACKED: Final = 16


def network_report(network: SimulatedNetwork, api_port: int, metrics_port: int) -> dict[str, Any]:
    """Return the content of the file.

    IDs in base58-check, bytes in hex, keys in hex after 0x, weights as numbers.
    """
    more = {"nodeUris": [node.uri for node in network.nodes]} if len(network.nodes) > 1 else {}
    return more | {
        "nodeUri": network.node_uri,
        "networkId": network.network_id,
        "subnets": [_subnet(network, subnet) for subnet in network.subnets],
        "messages": [_message(message) for message in network.messages],
        "l1Transactions": [
            _transaction(tx) for tx in network.p_chain.transactions if tx.attested is not None
        ],
        "config": aggregator_config(network, api_port, metrics_port),
    }


def _transaction(transaction: Transaction) -> dict[str, Any]:
    return {
        "txHash": transaction.text,
        "type": transaction.kind,
        "pChainHeight": transaction.height,
    }


def aggregator_config(
    network: SimulatedNetwork, api_port: int, metrics_port: int
) -> dict[str, Any]:
    """Return a config with keys of the reference aggregator only."""
    tracked = [
        id_text(subnet.subnet_id)
        for subnet in network.subnets
        if subnet.subnet_id != PRIMARY_NETWORK
    ]
    return {
        "log-level": "info",
        "p-chain-api": {"base-url": network.node_uri},
        "info-api": {"base-url": network.node_uri},
        "api-port": api_port,
        "metrics-port": metrics_port,
        "allow-private-ips": True,
        "tracked-subnet-ids": tracked[:_MAX_TRACKED],
    }


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind((LOOPBACK, 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _subnet(network: SimulatedNetwork, subnet: SimSubnet) -> dict[str, Any]:
    validations = network.state.validations[subnet.subnet_id]
    return {
        "subnetId": id_text(subnet.subnet_id),
        "blockchainIds": [
            id_text(chain_id) for chain_id in network.state.chains_of(subnet.subnet_id)
        ],
        "validators": [_validation(validation) for validation in validations if validation.present],
    }


def _validation(validation: Validation) -> dict[str, Any]:
    return {
        "nodeId": node_id_text(validation.node_id),
        "publicKey": "0x" + validation.public_key.hex() if validation.public_key else None,
        "weight": validation.weight,
        "active": validation.active,
    }


def _message(message: SimMessage) -> dict[str, Any]:
    return {
        "message": message.unsigned.raw.hex(),
        "justification": message.justification.hex(),
        "sourceBlockchainId": id_text(message.unsigned.source_chain_id),
        "signingSubnetId": id_text(message.signing_subnet_id),
    }
