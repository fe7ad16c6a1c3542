"""Show timed starts, caches and GPU code in the terminal, with one module each. Each is imported when
needed."""

__all__ = ["caches", "device_code", "starts"]
