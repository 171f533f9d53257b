"""The databases of the indexed EVM chains, one for each: schema, writer and reader.

Start with `schema.py` for the tables. `writer.py` writes blocks and the results of the background
parts, and `reader.py` reads for the queries of `resources/evm.py`. docs/evm-index.md describes the
design.
"""
