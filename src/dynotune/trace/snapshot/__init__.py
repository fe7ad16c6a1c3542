"""Snapshots of torch's caching allocator: read, replayed, summed up by holder."""
