"""Turn samples into batches: cached, decoded, grouped by length or packed; and upload batches ahead of
time."""

from dynotune.runtime.data.cache import SampleCache
from dynotune.runtime.data.decoding import Decoded, decode_on_device
from dynotune.runtime.data.lengths import LengthBatchSampler
from dynotune.runtime.data.packing import check_packing, pack

__all__ = ["Decoded", "LengthBatchSampler", "SampleCache", "check_packing", "decode_on_device", "pack"]
