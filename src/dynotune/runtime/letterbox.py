"""Frames of any size made into a network's input, on the device: resized, padded, in the order of colours, scaled."""

from dynotune.runtime.vision.letterbox import Letterbox, Placement, place, rows_read

__all__ = ["Letterbox", "Placement", "place", "rows_read"]
