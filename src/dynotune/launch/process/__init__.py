"""Starting a command, watching over its process tree, and ending all of it."""
