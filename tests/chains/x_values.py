"""X-Chain transactions of every type with anything in them, for property tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from warpseal.chains import components as shared
from warpseal.chains import x_txs
from warpseal.chains import x_txs as x

u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
ids: st.SearchStrategy[Any] = st.binary(min_size=32, max_size=32)
addresses: st.SearchStrategy[Any] = st.binary(min_size=20, max_size=20)
names = st.text(max_size=20)
payloads = st.binary(max_size=40)


def some(element: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a strategy for tuples of up to `most` elements."""
    return st.lists(element, max_size=most).map(tuple)


def signed(make: Callable[..., Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for credentials made by `make`."""
    return st.builds(make, some(st.binary(min_size=65, max_size=65), 2))


indices = some(u32)
owners = st.builds(shared.OutputOwners, u64, u32, some(addresses))
auths = st.builds(shared.Input, indices)
transfer_outputs = st.builds(shared.TransferOutput, u64, u64, u32, some(addresses))
transferable_outputs = st.builds(shared.TransferableOutput, ids, transfer_outputs)
transferable_inputs = st.builds(
    shared.TransferableInput, ids, u32, ids, st.builds(shared.TransferInput, u64, indices)
)
bases = st.builds(
    shared.BaseFields, u32, ids, some(transferable_outputs), some(transferable_inputs), payloads
)

mint_outputs = st.builds(x.MintOutput, owners)
nfts = st.builds(x.NftTransferOutput, u32, payloads, owners)
property_mint_outputs = st.builds(x.PropertyMintOutput, owners)
owned_properties = st.builds(x.PropertyOwnedOutput, owners)
outputs = st.one_of(
    transfer_outputs,
    mint_outputs,
    st.builds(x.NftMintOutput, u32, owners),
    nfts,
    property_mint_outputs,
    owned_properties,
)
operations = st.one_of(
    st.builds(x.MintOperation, auths, mint_outputs, transfer_outputs),
    st.builds(x.NftMintOperation, auths, u32, payloads, some(owners)),
    st.builds(x.NftTransferOperation, auths, nfts),
    st.builds(x.PropertyMintOperation, auths, property_mint_outputs, owned_properties),
    st.builds(x.PropertyBurnOperation, indices),
)
credentials = signed(shared.Credential) | signed(x.NftCredential) | signed(x.PropertyCredential)
creations = st.builds(
    x_txs.CreateAssetTx,
    bases,
    names,
    names,
    u8,
    some(st.builds(x_txs.InitialState, u32, some(outputs)), 2),
)
unsigned = st.one_of(
    st.builds(shared.BaseTx, bases),
    creations,
    st.builds(
        x_txs.OperationTx,
        bases,
        some(
            st.builds(
                x_txs.AssetOperation,
                ids,
                some(st.builds(x_txs.UtxoReference, ids, u32)),
                operations,
            )
        ),
    ),
    st.builds(shared.ImportTx, bases, ids, some(transferable_inputs)),
    st.builds(shared.ExportTx, bases, ids, some(transferable_outputs)),
)
txs: st.SearchStrategy[x_txs.XTx] = st.builds(x_txs.X_TX.build, unsigned, some(credentials))
