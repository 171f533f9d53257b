"""Warp messages and the sets that sign them: pure values and their bytes.

Start with `message.py` (unsigned and signed messages, payloads, the signer bit set) and
`validator_set.py` (canonical order, quorum). `l1_messages.py` and `justification.py` hold the
payloads of the P-Chain and of L1s, `ids.py` the ids and their texts, `codec.py` the linear codec
that all of them use.
"""
