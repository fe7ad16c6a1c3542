"""Make frames of any size into a network's input, on the device: resize, pad, reorder colours, scale."""

from dynotune.runtime.vision.letterbox import Letterbox, Placement, place, rows_read

__all__ = ["Letterbox", "Placement", "place", "rows_read"]
