"""The `platform.*` API of a simulated node.

Source of truth: avalanchego `vms/platformvm/service.go`; shapes and texts as recorded from real
nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    MalformedID,
    SubnetID,
    ValidationID,
    id_text,
    node_id_text,
    parse_node_id,
)
from warpseal.warp.validator_set import build_canonical_set
from warpseal_simnet.ledger import SUPPLY_NAVAX
from warpseal_simnet.rpc import BadArgument, Method, Params, RpcError, id_argument, number_argument
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.validator_sets import SetEntry, Validation
from warpseal_simnet.values import ChainKind, SimSubnet

_NO_ID: Final = id_text(bytes(32))
_NO_OWNER: Final = {"locktime": "0", "threshold": "0", "addresses": list[str]()}
_YEAR_S: Final = 365 * 24 * 3600
_MAX_HEIGHT: Final = 2**64 - 1
_VM_IDS: Final = {
    ChainKind.EVM: "srEXiWaHuhNyGwPUi444Tu47ZEDwxTWrbQiuD7FmgSAQ6X7Dy",
    ChainKind.X: "jvYyfQTxGMJLuGWa55kdP2p2zSUYsQ5Raupu4TW34ZAUBAbtq",
}
_C_CHAIN_VM: Final = "mgj786NP7uDwBCcq6YwThhaN8FLyybkCa4zBWTQbNgmK6k9A6"


class Platform:
    """Responder from the state of the simulated P-Chain that the node is at."""

    def __init__(self, state: SimState, view: Callable[[], StateAt]) -> None:
        """Build the API.

        state: the state of the network, which is read for data that never change.
        view: a function that returns the state that the node has reached.
        """
        self._state = state
        self._view = view
        self._set_json = lru_cache(maxsize=64)(self._make_set_json)
        self._warp_set_json = lru_cache(maxsize=64)(self._make_warp_set_json)

    def methods(self) -> dict[str, Method]:
        """Return the calls by name."""
        replies: dict[str, Callable[[Params], Any]] = {
            "getHeight": self._height,
            "getProposedHeight": self._proposed_height,
            "getTimestamp": self._timestamp,
            "getValidatorsAt": self._validators_at,
            "getAllValidatorsAt": self._all_validators_at,
            "getCurrentValidators": self._current_validators,
            "getTotalStake": self._total_stake,
            "getStakingAssetID": self._staking_asset,
            "getCurrentSupply": self._current_supply,
            "getValidatorFeeConfig": self._fee_config,
            "getValidatorFeeState": self._fee_state,
            "getL1Validator": self._l1_validator,
            "getSubnet": self._subnet,
            "getSubnets": self._subnets,
            "getBlockchains": self._blockchains,
            "validatedBy": self._validated_by,
            "validates": self._validates,
        }
        return {f"platform.{name}": reply for name, reply in replies.items()}

    def _height(self, _: Params) -> Any:
        return {"height": str(self._view().height)}

    def _proposed_height(self, _: Params) -> Any:
        return {"height": str(self._view().proposed)}

    def _timestamp(self, _: Params) -> Any:
        return {"timestamp": rfc3339(self._view().chain_time)}

    def _staking_asset(self, params: Params) -> Any:
        subnet_id = (
            SubnetID(bytes(32)) if params.get("subnetID") is None else _subnet_argument(params)
        )
        if subnet_id != PRIMARY_NETWORK:
            raise RpcError(
                f"failed fetching subnet transformation for {id_text(subnet_id)}: not found"
            )
        return {"assetID": id_text(self._state.ledger.asset_id)}

    def _current_supply(self, params: Params) -> Any:
        if params.get("subnetID") is not None and _subnet_argument(params) != PRIMARY_NETWORK:
            raise RpcError("fetching current supply failed: not found")
        return {"supply": str(SUPPLY_NAVAX), "height": str(self._view().height)}

    def _fee_config(self, _: Params) -> Any:
        config = self._state.fees.config
        return {
            "capacity": config.capacity,
            "target": config.target,
            "minPrice": config.min_price,
            "excessConversionConstant": config.excess_conversion,
        }

    def _fee_state(self, _: Params) -> Any:
        view, fees = self._view(), self._state.fees
        excess = fees.at(view.height).excess
        return {
            "excess": excess,
            "price": fees.config.price(excess),
            "timestamp": rfc3339(view.chain_time),
        }

    def _validators_at(self, params: Params) -> Any:
        height = self._asked_height(params)
        subnet_id = _subnet_argument(params)
        current = self._view().height
        if height > current:
            raise RpcError(
                f"failed to get validator set at {height}: failed to fetch validator set at"
                f" unfinalized height with SubnetID = {id_text(subnet_id)}:"
                f" {_beyond(current, height)}"
            )
        return self._set_json(self._state.set_at(subnet_id, height))

    def _all_validators_at(self, params: Params) -> Any:
        height = self._asked_height(params)
        current = self._view().height
        if height > current:
            raise RpcError(
                f"failed to get validator sets at {height}: failed to fetch validator set at"
                f" unfinalized height: {_beyond(current, height)}"
            )
        sets = (
            f'"{id_text(subnet_id)}":'.encode() + self._warp_set_json(members)
            for subnet_id in self._state.history.subnets
            if (members := self._state.set_at(subnet_id, height))
        )
        return b'{"validatorSets":{' + b",".join(sets) + b"}}"

    def _asked_height(self, params: Params) -> int:
        if params.get("height") == "proposed":
            return self._view().proposed
        height = number_argument(params, "height")
        # The largest number is reserved for "proposed" and refused.
        if height == _MAX_HEIGHT:
            raise BadArgument
        return height

    def _make_set_json(self, members: tuple[SetEntry, ...]) -> bytes:
        fields = {
            node_id_text(member.node_id): {
                "publicKey": _hex(member.public_key) if member.public_key else None,
                "weight": str(member.weight),
            }
            for member in members
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def _make_warp_set_json(self, members: tuple[SetEntry, ...]) -> bytes:
        merged = build_canonical_set(members)
        validators = [
            {
                "publicKey": _hex(validator.public_key),
                "weight": str(validator.weight),
                "nodeIDs": list(map(node_id_text, validator.node_ids)),
            }
            for validator in merged.validators
        ]
        fields = {"validators": validators, "totalWeight": str(merged.total_weight)}
        return json.dumps(fields, separators=(",", ":")).encode()

    def _current_validators(self, params: Params) -> Any:
        requested_ids = params.get("nodeIDs") or []
        if not isinstance(requested_ids, list):
            raise BadArgument
        try:
            node_ids = {parse_node_id(text) for text in requested_ids}
        except (MalformedID, AttributeError, TypeError):
            raise BadArgument from None
        view = self._view()
        validations = view.validations(_subnet_argument(params))
        selected = (
            validation
            for validation in validations
            if not node_ids or validation.node_id in node_ids
        )
        return {"validators": [self._validation_json(validation, view) for validation in selected]}

    def _total_stake(self, params: Params) -> Any:
        weight = str(
            sum(
                validation.weight
                for validation in self._view().validations(_subnet_argument(params))
            )
        )
        return {"stake": weight, "weight": weight}

    def _l1_validator(self, params: Params) -> Any:
        validation_id = ValidationID(id_argument(params, "validationID"))
        view = self._view()
        validation = view.validation(validation_id)
        if validation is None:
            raise RpcError(f'fetching L1 validator "{id_text(validation_id)}" failed: not found')
        fields = self._validation_json(validation, view)
        return {
            **fields,
            "subnetID": id_text(validation.subnet_id),
            "height": str(view.height),
        }

    def _validation_json(self, validation: Validation, view: StateAt) -> dict[str, Any]:
        if validation.is_l1:
            return _l1_validation_json(validation, view.balance(validation))
        fields: dict[str, Any] = {
            "txID": id_text(validation.id),
            "startTime": str(validation.start_time),
            "endTime": str(validation.start_time + _YEAR_S),
            "weight": str(validation.weight),
            "nodeID": node_id_text(validation.node_id),
        }
        if validation.subnet_id == PRIMARY_NETWORK:
            fields |= self._stake_json(validation)
        return fields

    def _stake_json(self, validation: Validation) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "validationRewardOwner": _NO_OWNER,
            "delegationRewardOwner": _NO_OWNER,
            "potentialReward": str(validation.weight // 10),
            "accruedDelegateeReward": "0",
            "delegationFee": "2.0000",
            "uptime": "100.0000",
            "connected": True,
        }
        if validation.public_key is not None:
            proof = self._proof(validation)
            fields["signer"] = {
                "publicKey": _hex(validation.public_key),
                "proofOfPossession": _hex(proof),
            }
        return fields | {"delegatorCount": "0", "delegatorWeight": "0"}

    def _proof(self, validation: Validation) -> bytes:
        validator = self._state.by_node(validation.node_id)
        if validator is not None and validator.identity.bls_public_key == validation.public_key:
            return validator.identity.bls_proof
        # The secret of a recorded key is unknown.
        return bytes([0xC0]) + bytes(95)

    def _subnet(self, params: Params) -> Any:
        subnet_id = _subnet_argument(params)
        if subnet_id == PRIMARY_NETWORK:
            raise RpcError("the primary network isn't a subnet")
        subnet = self._view().subnet(subnet_id)
        if subnet is None:
            raise RpcError("not found")
        return _subnet_json(subnet)

    def _subnets(self, params: Params) -> Any:
        requested_ids = params.get("ids") or []
        subnets = [
            {"id": id_text(subnet.subnet_id), "controlKeys": [], "threshold": "0"}
            for subnet in self._view().subnets
            if not requested_ids or id_text(subnet.subnet_id) in requested_ids
        ]
        return {"subnets": subnets}

    def _blockchains(self, _: Params) -> Any:
        chains = [
            {
                "id": id_text(chain.chain_id),
                "name": chain.name,
                "subnetID": id_text(chain.subnet_id),
                "vmID": _C_CHAIN_VM if chain.alias == "C" else _VM_IDS[chain.kind],
            }
            for chain in self._state.chains.values()
            if chain.chain_id != P_CHAIN
        ]
        return {"blockchains": chains}

    def _validated_by(self, params: Params) -> Any:
        chain_id = ChainID(id_argument(params, "blockchainID"))
        chain = self._state.chains.get(chain_id)
        if chain is None:
            raise RpcError(f'problem retrieving blockchain "{id_text(chain_id)}": not found')
        return {"subnetID": id_text(chain.subnet_id)}

    def _validates(self, params: Params) -> Any:
        subnet_id = _subnet_argument(params)
        if subnet_id not in self._state.subnets:
            raise RpcError(f'problem retrieving subnet "{id_text(subnet_id)}": not found')
        chains = self._state.chains_of(subnet_id)
        return {"blockchainIDs": [id_text(chain_id) for chain_id in chains if chain_id != P_CHAIN]}


def rfc3339(at: float) -> str:
    """Return unix seconds as nodes print times."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _l1_validation_json(validation: Validation, balance_navax: int) -> dict[str, Any]:
    return {
        "nodeID": node_id_text(validation.node_id),
        "weight": str(validation.weight),
        "startTime": str(validation.start_time),
        "validationID": id_text(validation.id),
        "publicKey": _hex(validation.public_key or b""),
        "remainingBalanceOwner": _NO_OWNER,
        "deactivationOwner": _NO_OWNER,
        "minNonce": str(validation.min_nonce),
        "balance": str(balance_navax),
    }


def _subnet_json(subnet: SimSubnet) -> dict[str, Any]:
    converted = subnet.conversion_id is not None
    return {
        "isPermissioned": not converted,
        "controlKeys": [],
        "threshold": "0",
        "locktime": "0",
        "subnetTransformationTxID": _NO_ID,
        "conversionID": id_text(subnet.conversion_id) if subnet.conversion_id else _NO_ID,
        "managerChainID": id_text(subnet.manager_chain_id) if subnet.manager_chain_id else _NO_ID,
        "managerAddress": _hex(subnet.manager_address) if converted else None,
    }


def _subnet_argument(params: Params) -> SubnetID:
    return SubnetID(id_argument(params, "subnetID"))


def _beyond(current: int, height: int) -> str:
    return f"current P-chain height ({current}) < requested P-Chain height ({height})"


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
