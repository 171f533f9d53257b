"""The effects of P-, X- and C-Chain blocks on outputs, stakers, subnets, L1s and supply.

Pure.

Start with docs/ledger.md, then `p_chain.py` (`apply_p_block`), `x_chain.py` and `c_chain.py`.
`effects.py` holds the result, `p_state.py` the state of the P-Chain, `utxo_flow.py` the spending
and making of outputs that all chains share, `checkpoint.py` the state as bytes.
"""
