"""The node's JSON of a P-Chain transaction, written from what was decoded: what is read wrong shows
as a difference.

The node tags no types, shows addresses with their chain, ids in base58-check, the proof of a
registration as numbers.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from warpseal.chains import components, p_txs
from warpseal.chains.components import (
    BaseFields,
    Credential,
    Input,
    LockIn,
    LockOut,
    Output,
    OutputOwners,
    Spend,
    TransferableInput,
    TransferableOutput,
)
from warpseal.chains.ids import address_text
from warpseal.chains.p_txs import InitialValidator, PSignedTx
from warpseal.warp.ids import cb58_encode, id_text, node_id_text
from warpseal.warp.l1_messages import PChainOwner

_FX: Final = "spdxUxVJQbX85MGxMHbKw1sHxMnSqJ3QBzDyDYEP3h6TLuxqQ"


def node_json(tx: PSignedTx) -> dict[str, Any]:
    """Return what a node answers to `platform.getTx` with encoding `json`."""
    return {
        "unsignedTx": _unsigned(tx),
        "credentials": [_credential(credential) for credential in tx.credentials],
        "id": id_text(tx.id),
    }


def _unsigned(tx: PSignedTx) -> dict[str, Any]:
    match tx.unsigned:
        case components.BaseTx(base):
            return _base(base)
        case components.ImportTx(base, source, inputs):
            return _base(base) | {
                "sourceChain": id_text(source),
                "importedInputs": [_input(i) for i in inputs],
            }
        case components.ExportTx(base, destination, outputs):
            exported = [_output(output, base.network_id) for output in outputs]
            return _base(base) | {
                "destinationChain": id_text(destination),
                "exportedOutputs": exported,
            }
        case p_txs.CreateSubnetTx(base, owner):
            return _base(base) | {"owner": _owner(owner, base.network_id)}
    return _of_subnet(tx)


def _of_subnet(tx: PSignedTx) -> dict[str, Any]:
    match tx.unsigned:
        case p_txs.CreateChainTx(base, subnet_id, name, vm_id, fx_ids, genesis, auth):
            return _base(base) | {
                "subnetID": id_text(subnet_id),
                "chainName": name,
                "vmID": id_text(vm_id),
                "fxIDs": [id_text(fx_id) for fx_id in fx_ids],
                "genesisData": base64.b64encode(genesis).decode(),
                "subnetAuthorization": _auth(auth),
            }
        case p_txs.TransferSubnetOwnershipTx(base, subnet_id, auth, owner):
            fields = {"subnetID": id_text(subnet_id), "newOwner": _owner(owner, base.network_id)}
            return _base(base) | fields | {"subnetAuthorization": _auth(auth)}
        case p_txs.RemoveSubnetValidatorTx(base, node_id, subnet_id, auth):
            fields = {"nodeID": node_id_text(node_id), "subnetID": id_text(subnet_id)}
            return _base(base) | fields | {"subnetAuthorization": _auth(auth)}
        case p_txs.AddSubnetValidatorTx(base, staker, auth):
            validator = {
                "nodeID": node_id_text(staker.validator.node_id),
                "start": staker.validator.start_s,
                "end": staker.validator.end_s,
                "weight": staker.validator.weight,
                "subnetID": id_text(staker.subnet_id),
            }
            return _base(base) | {"validator": validator, "subnetAuthorization": _auth(auth)}
    return _of_l1(tx)


def _of_l1(tx: PSignedTx) -> dict[str, Any]:
    match tx.unsigned:
        case p_txs.ConvertSubnetToL1Tx(base, subnet_id, chain_id, address, validators, auth):
            return _base(base) | {
                "subnetID": id_text(subnet_id),
                "chainID": id_text(chain_id),
                "address": _hex(address),
                "validators": [_initial_validator(validator) for validator in validators],
                "subnetAuthorization": _auth(auth),
            }
        case p_txs.RegisterL1ValidatorTx(base, balance, proof, message):
            return _base(base) | {
                "balance": balance,
                "proofOfPossession": list(proof),
                "message": _hex(message),
            }
        case p_txs.SetL1ValidatorWeightTx(base, message):
            return _base(base) | {"message": _hex(message)}
        case p_txs.IncreaseL1ValidatorBalanceTx(base, validation_id, balance):
            return _base(base) | {"validationID": id_text(validation_id), "balance": balance}
        case p_txs.DisableL1ValidatorTx(base, validation_id, auth):
            return _base(base) | {
                "validationID": id_text(validation_id),
                "disableAuthorization": _auth(auth),
            }
    raise AssertionError(f"no {tx.kind} was recorded")


def _base(base: BaseFields) -> dict[str, Any]:
    return {
        "networkID": base.network_id,
        "blockchainID": id_text(base.blockchain_id),
        "outputs": [_output(output, base.network_id) for output in base.outputs],
        "inputs": [_input(spent) for spent in base.inputs],
        "memo": _hex(base.memo),
    }


def _output(output: TransferableOutput, network_id: int) -> dict[str, Any]:
    return {
        "assetID": id_text(output.asset_id),
        "fxID": _FX,
        "output": _held(output.output, network_id),
    }


def _held(output: Output, network_id: int) -> dict[str, Any]:
    if isinstance(output, LockOut):
        return {"locktime": output.locktime, "output": _held(output.output, network_id)}
    return {"amount": output.amount, **_owner(output.owners, network_id)}


def _input(spent: TransferableInput) -> dict[str, Any]:
    return {
        "txID": id_text(spent.tx_id),
        "outputIndex": spent.output_index,
        "assetID": id_text(spent.asset_id),
        "fxID": _FX,
        "input": _spend(spent.input),
    }


def _spend(spend: Spend) -> dict[str, Any]:
    if isinstance(spend, LockIn):
        return {"locktime": spend.locktime, "input": _spend(spend.input)}
    return {"amount": spend.amount, "signatureIndices": list(spend.signature_indices)}


def _owner(owner: OutputOwners, network_id: int) -> dict[str, Any]:
    addresses = [address_text(network_id, address) for address in owner.addresses]
    return {"addresses": addresses, "locktime": owner.locktime, "threshold": owner.threshold}


def _initial_validator(validator: InitialValidator) -> dict[str, Any]:
    signer = validator.signer
    return {
        "nodeID": _hex(validator.node_id),
        "weight": validator.weight,
        "balance": validator.balance,
        "signer": {"publicKey": _hex(signer.public_key), "proofOfPossession": _hex(signer.proof)},
        "remainingBalanceOwner": _l1_owner(validator.remaining_balance_owner),
        "deactivationOwner": _l1_owner(validator.deactivation_owner),
    }


def _l1_owner(owner: PChainOwner) -> dict[str, Any]:
    return {
        "threshold": owner.threshold,
        "addresses": [cb58_encode(address) for address in owner.addresses],
    }


def _credential(credential: Credential) -> dict[str, Any]:
    return {"signatures": [_hex(signature) for signature in credential.signatures]}


def _auth(auth: Input) -> dict[str, Any]:
    return {"signatureIndices": list(auth.signature_indices)}


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
