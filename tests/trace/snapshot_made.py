"""Synthetic snapshots of torch's caching allocator: made by the structure that `torch.cuda.memory._snapshot`
documents, by an allocator of a few lines that logs as the real one does. None was written by torch.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEGMENT = 20 << 20
Frames = list[dict[str, Any]]


def stack(*functions: str) -> Frames:
    """Frames, innermost first, each given as `file(line): function`."""
    frames = []
    for text in functions:
        file, _, rest = text.partition("(")
        line, _, name = rest.partition("): ")
        frames.append({"filename": file, "line": int(line), "name": name})
    return frames


@dataclass
class Block:
    address: int
    size: int
    state: str = "inactive"
    requested: int = 0
    frames: Frames = field(default_factory=list)


@dataclass
class Segment:
    address: int
    blocks: list[Block]
    frames: Frames
    device: int


class SnapshotMade:
    """A caching allocator of one size of segment. Time passes by a second with each event.

    >>> made = SnapshotMade()
    >>> address = made.alloc(1000, stack("train.py(3): step"))
    >>> made.free(address)
    >>> made.write(path)
    """

    def __init__(self, *, is_expandable: bool = False, device: int = 0) -> None:
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] = []
        self.is_expandable, self.device = is_expandable, device
        self.next_address, self.time_us = 0x7F0000000000, 1_700_000_000_000_000
        # What torch's own statistics would say, reckoned forward.
        self.levels: list[int] = []

    def alloc(self, size: int, frames: Frames | None = None, *, flushing: bool = False) -> int:
        """Allocates; `flushing` finds no memory first, and so gives free segments back."""
        frames = frames if frames is not None else []
        rounded = -(-size // 512) * 512
        block = None if flushing else self._fitting(rounded)
        if block is None:
            if flushing:
                self._release(frames)
            segment = Segment(self.next_address, [], frames, self.device)
            segment.blocks.append(Block(segment.address, max(SEGMENT, rounded)))
            self.next_address += 2 * max(SEGMENT, rounded)
            self.segments.append(segment)
            self._log(self._name("alloc"), segment.address, segment.blocks[0].size, frames)
            block = segment.blocks[0]
        self._split(block, rounded)
        block.state, block.requested, block.frames = "active_allocated", size, frames
        self._log("alloc", block.address, size, frames)
        return block.address

    def free(self, address: int, frames: Frames | None = None) -> None:
        self.request_free(address, frames)
        self.complete_free(address, frames)

    def request_free(self, address: int, frames: Frames | None = None) -> None:
        block = self._at(address)
        block.state = "active_pending_free"
        self._log("free_requested", address, block.requested, frames)

    def complete_free(self, address: int, frames: Frames | None = None) -> None:
        block = self._at(address)
        size, block.state, block.requested, block.frames = block.requested, "inactive", 0, []
        self._merge()
        self._log("free_completed", address, size, frames)

    def empty_cache(self, frames: Frames | None = None) -> None:
        self._release(
            stack("/env/lib/python3.11/site-packages/torch/cuda/memory.py(222): empty_cache") + (frames or [])
        )

    def fail(self, size: int, frames: Frames | None = None) -> None:
        self._release(frames or [])
        self._log("oom", 0, size, frames)

    def keep_last(self, num_events: int) -> None:
        """Forgets all but the last events, as the ring buffer does."""
        self.events = self.events[max(0, len(self.events) - num_events) :]
        self.levels = self.levels[max(0, len(self.levels) - num_events - 1) :]

    def active_bytes(self) -> int:
        return sum(block.requested for segment in self.segments for block in segment.blocks)

    def data(self) -> dict[str, Any]:
        return {
            "segments": [self._segment(segment) for segment in self.segments],
            "device_traces": [[] for _ in range(self.device)] + [self.events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "expandable_segments": self.is_expandable,
                "garbage_collection_threshold": 0.0,
                "roundup_power2_divisions": {"1": 0, "2": 0},
            },
            "external_annotations": [],
        }

    def write(self, path: Path, *, protocol: int = 4) -> Path:
        path.write_bytes(pickle.dumps(self.data(), protocol=protocol))
        return path

    def _segment(self, segment: Segment) -> dict[str, Any]:
        sizes = dict.fromkeys(("active_allocated", "active_pending_free", "inactive"), 0)
        for block in segment.blocks:
            sizes[block.state] += block.size
        return {
            "device": segment.device,
            "address": segment.address,
            "total_size": sum(sizes.values()),
            "allocated_size": sizes["active_allocated"],
            "active_size": sizes["active_allocated"] + sizes["active_pending_free"],
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": self.is_expandable,
            "frames": segment.frames,
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": block.state,
                    "frames": block.frames,
                }
                for block in segment.blocks
            ],
        }

    def _log(self, action: str, address: int, size: int, frames: Frames | None) -> None:
        self.time_us += 1_000_000
        event: dict[str, Any] = {"action": action, "size": size, "stream": 0, "time_us": self.time_us}
        event["device_free" if action == "oom" else "addr"] = address
        if frames:
            event["frames"] = frames
        if not self.levels:
            self.levels.append(0)
        self.events.append(event)
        self.levels.append(self.levels[-1] + {"alloc": size, "free_completed": -size}.get(action, 0))

    def _name(self, what: str) -> str:
        expandable = {"alloc": "segment_map", "free": "segment_unmap"}
        return expandable[what] if self.is_expandable else f"segment_{what}"

    def _at(self, address: int) -> Block:
        return next(
            block for segment in self.segments for block in segment.blocks if block.address == address
        )

    def _fitting(self, size: int) -> Block | None:
        free = (block for segment in self.segments for block in segment.blocks if block.state == "inactive")
        return next((block for block in free if block.size >= size), None)

    def _split(self, block: Block, size: int) -> None:
        if block.size > size:
            blocks = next(segment.blocks for segment in self.segments if block in segment.blocks)
            blocks.insert(blocks.index(block) + 1, Block(block.address + size, block.size - size))
            block.size = size

    def _merge(self) -> None:
        for segment in self.segments:
            merged: list[Block] = []
            for block in segment.blocks:
                if merged and merged[-1].state == block.state == "inactive":
                    merged[-1].size += block.size
                else:
                    merged.append(block)
            segment.blocks = merged

    def _release(self, frames: Frames) -> None:
        for segment in list(self.segments):
            if len(segment.blocks) == 1 and segment.blocks[0].state == "inactive":
                self.segments.remove(segment)
                self._log(self._name("free"), segment.address, segment.blocks[0].size, frames)
