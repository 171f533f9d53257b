"""Pure codecs of EVM chains: blocks, receipts, NFT events, traces, calls of contracts.

Start with `facts.py`.
"""
