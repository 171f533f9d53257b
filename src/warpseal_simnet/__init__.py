"""A simulated Avalanche network of validators and RPC nodes, strict about what clients send.

It is an independent witness and imports nothing of the client side. Start reading at
`network.SimulatedNetwork`. `plan` and `behaviours` describe a network, and `build` creates its
`state.SimState`. `listener` and `peer` speak the peer protocol, `node` serves the RPC, `p_chain`
executes P-Chain transactions, and `violations` counts what clients break.
"""
