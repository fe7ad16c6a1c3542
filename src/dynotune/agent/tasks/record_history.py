"""Record what the caching allocator does from the device's first use to a step: sizes and order, without
stacks.

The allocator's later state follows from this complete history. If the program itself begins to record
allocations, this task gives up.
"""

from __future__ import annotations

import functools
import os
import pickle

from ..core.covers import covers, uncover
from ..core.device import synchronise
from ..core.errors import guarded
from ..core.observe import number
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

MOST_EVENTS = 400_000


class RecordHistory(Task):
    """Record allocations until `at_step`. The result names the file of the snapshot."""

    event = "history"
    needs_torch = True
    _is_recording = False
    _record: Any = None
    _cover: Any = None

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._tried = functools.partial(guarded, program.log, self.event)

    def torch_is_here(self) -> None:
        memory = self.program.torch.cuda.memory
        original = self._record = memory._record_memory_history

        @covers(memory, "_record_memory_history")
        def record(*args: Any, **kwargs: Any) -> Any:
            self._tried(self._stop)
            return original(*args, **kwargs)

        self._cover = record
        self.program.torch.cuda._lazy_call(lambda: self._tried(self._start))  # after CUDA has started

    def begin(self, num_steps: int) -> int:
        memory = self.program.torch.cuda.memory
        if not self._is_recording:
            self.give_up("the allocator's history is not there from its start")
            return num_steps
        synchronise(self.program.torch)
        rank = self.program.ranks().get("rank", number("RANK"))
        name = "history-%s.pickle" % ("pid%d" % os.getpid() if rank is None else "rank%d" % rank)
        with open(os.path.join(self.program.folder, name), "wb") as file:
            pickle.dump(memory._snapshot(), file, protocol=4)
        self.complete(file=name, pid=os.getpid(), rank=rank)
        return num_steps

    def clean_up(self) -> None:
        self._stop()
        if self._cover is not None:
            uncover(self.program.torch.cuda.memory, "_record_memory_history", self._cover)

    def _start(self) -> None:
        torch = self.program.torch
        if torch.cuda.memory.get_allocator_backend() == "native" and not torch._C._cuda_isHistoryEnabled():
            self._is_recording = True
            self._record(context=None, max_entries=MOST_EVENTS)

    def _stop(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self._record(enabled=None)
