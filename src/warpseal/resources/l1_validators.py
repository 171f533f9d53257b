"""Validators of L1s as they are now, in the shape of the published SDKs."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from warpseal.resources.base import Resource
from warpseal.resources.queries import Page
from warpseal.resources.transactions import BlsCredentials

_KEY_EXAMPLE: Final = {
    "publicKey": (
        "0xa3dd5f924e754134c9af404240b5c5ca0fec6e63d26d0b57"
        "2e40c28247b3f1708aff3c5cb84586b49c644bff18549d5b"
    ),
    "proofOfPossession": (
        "0xabd4be95b661d334a0b08eadd467caac3d73ff2592df916c02fdbe19e21e8cce"
        "58691db3114745806ee593dfce9f2d0516b0fc776188636e7b22754219afc138"
        "afb55e650de25140663359b2d344a4046c2d53ee1f93bbb3f0255269aaa84d52"
    ),
}


class L1ValidatorOwner(Resource, frozen=True, gc=False, kw_only=True):
    """The owners of a balance or of an authority; `threshold` of them must sign."""

    addresses: Annotated[
        tuple[str, ...], Meta(examples=[["fuji18jma8ppw3nhx5r4ap8clazz0dps7rv5u6wmu4t"]])
    ]
    threshold: Annotated[int, Meta(examples=[1])]


class CurrentL1Validator(Resource, frozen=True, gc=False, kw_only=True):
    """A validator of an L1.

    weight: 0 once the validator is removed.
    remainingBalance: nAVAX, 0 while the validator is inactive.
    remainingBalanceOwner: the owner that gets the rest of the balance.
    deactivationOwner: the owner that may disable the validator.
    """

    validation_id: Annotated[
        str, Meta(examples=["yk2A5PJDFJ3YAiPUq6e2m7KbFJWhL4wUHRuXZUHF3rG484M7A"])
    ]
    validation_id_hex: Annotated[
        str, Meta(examples=["0x80d6ca413d3cd80bbd8b0a6dfbff3bef87d0584267d2d7ca05b4ddf254946cac"])
    ]
    node_id: Annotated[str, Meta(examples=["NodeID-83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV"])]
    subnet_id: Annotated[str, Meta(examples=["2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"])]
    weight: Annotated[int, Meta(examples=[49_463_000])]
    remaining_balance: Annotated[int, Meta(examples=[101_999_999_779])]
    creation_timestamp: Annotated[int, Meta(examples=[1_795_226_586])]
    bls_credentials: Annotated[BlsCredentials, Meta(examples=[_KEY_EXAMPLE])]
    remaining_balance_owner: L1ValidatorOwner
    deactivation_owner: L1ValidatorOwner


class L1ValidatorPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """The height of a page of L1 validators.

    blockHeight: the height of the P-Chain at which the validators have these balances.
    """

    block_height: Annotated[str, Meta(examples=["19"])]


class L1ValidatorPage(Page[CurrentL1Validator], frozen=True):
    """A page, and the height of the P-Chain at which it was read."""

    height: int = 0
