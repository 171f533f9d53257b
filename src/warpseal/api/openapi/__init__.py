"""The OpenAPI document of all paths, and the page that explores it.

Start reading at `document.py`.
"""
