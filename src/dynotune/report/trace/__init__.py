"""Lay out recorded traces: one, or two of one program. Each module is imported when needed."""

__all__ = ["difference", "summary"]
