"""An observation as rules read it. An unknown fact raises `Missing`, and never passes for a value."""

from __future__ import annotations

from collections.abc import Iterable

from dynotune.schema.facts import Unknown, Value
from dynotune.schema.observation import (
    Allocator,
    Attribution,
    Compilation,
    Loader,
    LostTime,
    Model,
    Observation,
    Optimizer,
    ProcessState,
    Timing,
)
from dynotune.schema.trace_summary import Kernels, TraceSummary


class Missing(Exception):
    """Raised by `ObservationView` for a fact that a rule needs and that is not known."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class ObservationView:
    """Read access for rules. Every method raises `Missing` if the answer is not known."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation

    # Facts

    def fact(self, name: str) -> Value:
        """Return a fact of the machine, `gpu.name`, or of the live process, `live.num_threads`."""
        facts = self.process.live if name.startswith("live.") else self.observation.facts
        if name not in facts:
            raise Missing(name, "it was not asked for")
        value = facts[name]
        if isinstance(value, Unknown):
            raise Missing(name, value.reason)
        return value

    def number(self, name: str) -> float:
        """Return a fact that is a number."""
        value = self.fact(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Missing(name, f"{value!r} is no number")
        return value

    def text(self, name: str) -> str:
        """Return a fact that is text."""
        value = self.fact(name)
        if not isinstance(value, str):
            raise Missing(name, f"{value!r} is no text")
        return value

    def truth(self, name: str) -> bool:
        """Return a fact that is true or false."""
        value = self.fact(name)
        if not isinstance(value, bool):
            raise Missing(name, f"{value!r} is neither true nor false")
        return value

    def words(self, name: str) -> list[str]:
        """Return a fact that is a list, as text."""
        value = self.fact(name)
        if not isinstance(value, list):
            raise Missing(name, f"{value!r} is no list")
        return [str(word) for word in value]

    def mentions(self, name: str) -> str:
        """Return a line of evidence: the fact in words, or that it is unknown. No rule decides by it."""
        facts = self.observation.facts
        processes = self.observation.processes
        if name.startswith("live.") and not isinstance(processes, Unknown) and processes:
            facts = processes[0].live
        value = facts.get(name, Unknown("it was not asked for"))
        return f"{name} unknown: {value.reason}" if isinstance(value, Unknown) else f"{name}: {value}"

    def variable(self, name: str) -> str | None:
        """Return an environment variable as its process changed it last, else as the command gets it; None if unset."""
        changes = [change for process in self._known_processes() for change in process.environment_changes]
        changed = [change for change in changes if change.name == name and not change.kept]
        if changed:
            return changed[-1].value
        if f"env.{name}" not in self.observation.facts:
            return None  # some variables are facts only if they are set
        value = self.fact(f"env.{name}")
        return None if value is None else str(value)

    def who_set(self, name: str) -> str:
        """Return who set an environment variable, in words; "" if that is not known."""
        for process in self._known_processes():
            for change in reversed(process.environment_changes):
                if change.name == name and not change.kept:
                    return f"set by the program in {change.file}:{change.line} ({change.function})"
        origin = self.observation.facts.get(f"env_from.{name}")
        return origin if isinstance(origin, str) else ""

    # The program

    def _known_processes(self) -> list[ProcessState]:
        processes = self.observation.processes
        return [] if isinstance(processes, Unknown) else processes

    @property
    def is_watched(self) -> bool:
        """Tell whether a command ran and its processes made steps."""
        return bool(self._known_processes())

    @property
    def processes(self) -> list[ProcessState]:
        """Return the processes that make steps, in the order of ranks; never empty."""
        processes = self.observation.processes
        if isinstance(processes, Unknown):
            raise Missing("the running program", processes.reason)
        if not processes:
            raise Missing("the running program", "no process of it made steps")
        return processes

    @property
    def process(self) -> ProcessState:
        """Return the first rank."""
        return self.processes[0]

    @property
    def timing(self) -> Timing:
        timing = self.process.timing
        if isinstance(timing, Unknown):
            raise Missing("timing of the plain window", timing.reason)
        return timing

    @property
    def loaders(self) -> list[Loader]:
        return self.process.loaders

    @property
    def models(self) -> list[Model]:
        return self.process.models

    @property
    def optimizers(self) -> list[Optimizer]:
        return self.process.optimizers

    @property
    def allocators(self) -> list[Allocator]:
        return self.process.allocators

    @property
    def compilation(self) -> Compilation:
        compilation = self.process.compilation
        if isinstance(compilation, Unknown):
            raise Missing("what torch.compile did", compilation.reason)
        return compilation

    @property
    def is_training(self) -> bool:
        """Tell whether an optimizer stepped."""
        return bool(self.optimizers)

    @property
    def uses_cuda(self) -> bool:
        """Tell whether the model, or anything that was traced, is on a CUDA device."""
        trace = self.observation.trace
        traced = not isinstance(trace, Unknown) and bool(trace.devices)
        return traced or any(device.startswith("cuda") for model in self.models for device in model.devices)

    # Time

    @property
    def trace(self) -> TraceSummary:
        trace = self.observation.trace
        if isinstance(trace, Unknown):
            raise Missing("the trace", trace.reason)
        return trace

    @property
    def kernels(self) -> Kernels:
        """Return the kernels of the first rank; Missing if no device work was recorded."""
        if not self.trace.kernels:
            raise Missing("kernels in the trace", "no device work was recorded")
        return self.trace.kernels[0]

    def kernel_share(self, *classes: str) -> float:
        """Return the time of kernels of these classes, at most the device's busy time, of a plain step."""
        attribution = self.attribution
        shares = sum(row.share for row in self.kernels.classes if row.name in classes)
        return min(shares, 1.0) * attribution.shares.device

    @property
    def attribution(self) -> Attribution:
        attribution = self.observation.attribution
        if isinstance(attribution, Unknown):
            raise Missing("where a step goes", attribution.reason)
        return attribution

    def losses(self, *ids: str) -> list[LostTime]:
        """Return the causes of these ids in shares of a plain step, largest first."""
        return sorted((loss for loss in self.attribution.lost_time if loss.id in ids), key=lambda loss: -loss.share)

    def lost(self, *ids: str) -> float:
        """Return the sum of these causes. Causes of idle time do not overlap one another."""
        return sum(loss.share for loss in self.losses(*ids))


def needs(condition: bool, name: str, reason: str) -> None:
    """Check what a rule needs.

    Raises:
        Missing: `condition` does not hold.
    """
    if not condition:
        raise Missing(name, reason)


def evidence_of(losses: Iterable[LostTime], most: int = 3) -> list[str]:
    """Return the lines of evidence of the largest losses."""
    return [line for loss in list(losses)[:most] for line in loss.evidence]
