"""Pure codecs of the primary chains: transactions, blocks, genesis files, and outer blocks.

Start with `codec.py` (one description reads and writes), then `components.py` (the values that all
chains share) and `signed_tx.py`. `p_txs.py` and `p_blocks.py` hold the P-Chain, `x_txs.py` and
`x_blocks.py` the X-Chain, `c_atomic.py` the C-Chain's atomic transactions, `proposervm.py` the
outer blocks.
"""
