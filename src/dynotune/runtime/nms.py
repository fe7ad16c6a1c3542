"""Suppress overlapping boxes without waiting for the device: exact greedy suppression over the best `top_k`
boxes."""

from dynotune.runtime.vision.nms import PostProcess, nms, suppress

__all__ = ["PostProcess", "nms", "suppress"]
