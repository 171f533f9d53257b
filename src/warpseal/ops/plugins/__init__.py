"""Virtual machines as plugins: what there is in the plugin directory, and whether it runs."""
