"""Move arrays between host and device: pinned memory, uploads, device buffers."""
