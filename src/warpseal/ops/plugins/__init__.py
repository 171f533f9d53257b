"""Plugins of virtual machines: find them in the plugin directory and probe them.

Start with registry.py.
"""
