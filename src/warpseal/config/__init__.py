"""The configuration: keys made from the settings of each package, read from flags, environment and
file.

Start at `keys.py` (what exists) and `load.py` (how it is read). A setting is declared once, in the
`settings.py` of its package.
"""
