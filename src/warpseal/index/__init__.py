"""The database of the indexed chains: its schema, its writer and its readers.

Start with `schema.py` for the tables. `writer.py` writes blocks, `rebuild.py` derives the rows
again from the stored blocks, and `index.py` reads for the queries of `resources/`. docs/index.md
describes the design.
"""
