"""Device memory: a model of torch's allocator, and predictions from what a program allocated on a pretended GPU.

`predict` makes a `MemoryPrediction` from the file that the agent wrote, `largest_batch` needs those of two batch sizes,
and `gpu` reads what `--gpu` names. Nothing here starts a program: `measure.live.pretended` does.
"""

from dynotune.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from dynotune.memory.constants import gpu
from dynotune.memory.offline import Allocations, largest_batch, predict, read

__all__ = [
    "Allocations",
    "AllocatorSettings",
    "CachingAllocator",
    "OutOfMemory",
    "gpu",
    "largest_batch",
    "predict",
    "read",
]
