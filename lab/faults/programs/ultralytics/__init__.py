"""A stand-in with the one thing that matters here: what the constructor does to the environment."""

from .engine.model import YOLO

__all__ = ["YOLO"]
