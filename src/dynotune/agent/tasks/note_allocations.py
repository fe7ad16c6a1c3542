"""Lets some steps pass on a pretended device, and writes what was allocated on it."""

from __future__ import annotations

from .task import Task


class NoteAllocations(Task):
    """Steps that ended before it began count: the allocations were noted from the program's start on."""

    event = "allocations_noted"
    needs_torch = True

    def begin(self, num_steps: int) -> int:
        return self.step_ended(num_steps)

    def step_ended(self, num_steps: int) -> int:
        allocations = self.program.allocations
        if allocations is None:
            self.give_up("no device was pretended")
            return num_steps
        allocations.step_ended(num_steps)
        if num_steps < int(self.order["num_steps"]):
            return num_steps + 1
        allocations.write()
        self.complete({"num_steps": num_steps})
        return num_steps
