"""Timed starts, caches and GPU code in the terminal: a module each. Each is imported when it is asked for."""

__all__ = ["caches", "device_code", "starts"]
