"""Compile and kernel caches: where they are, what they hold, packing and unpacking them."""
