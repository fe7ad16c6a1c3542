"""Samples on their way into batches, by length or packed; and batches on the device ahead of time."""

from dynotune.runtime.data.lengths import LengthBatchSampler
from dynotune.runtime.data.packing import check_packing, pack

__all__ = ["LengthBatchSampler", "check_packing", "pack"]
