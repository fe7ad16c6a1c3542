"""Samples on their way into batches: decoded, cached, by length or packed; and batches on the device ahead of time."""

from dynotune.runtime.data.cache import CachedDataset
from dynotune.runtime.data.decoding import Decoded, decode_on_device
from dynotune.runtime.data.lengths import LengthBatchSampler, PadToMultiple
from dynotune.runtime.data.packing import check_packing, pack

__all__ = [
    "CachedDataset",
    "Decoded",
    "LengthBatchSampler",
    "PadToMultiple",
    "check_packing",
    "decode_on_device",
    "pack",
]
