"""A timeline as it would have been under another condition."""
