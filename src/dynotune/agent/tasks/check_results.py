"""Record the program's results, so that runs can be compared: its losses, or outputs of its outermost
modules.

A loss is a tensor on which `backward` is called. If nothing is trained, a digest of each output is recorded
instead. All values stay on the device, in float64, and are read once, at the end. The program sees no change
unless the task asks for one: `other_draws` gives it other random numbers, `nudge` moves its numbers by a
rounding error, `reference` lets its modules compute in another type, and `still` turns dropout off.
"""

from __future__ import annotations

import functools
import weakref
from importlib import import_module

from ..core.covers import call_directly, covers
from ..core.device import is_capturing
from ..core.errors import by_a_signal, guarded
from . import references
from .digests import digests_of, fields_of, local, number, plainly, precision_of, random_states
from .task import NEVER, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program
    from .digests import Digest

# A program with an optimizer may evaluate before it trains; wait for this many calls before taking outputs.
PATIENCE = 10
# Number of calls in which random numbers and precision are observed.
NUM_LOOKED_AT = 3
# Largest number of scaled losses that wait for their backward call.
MOST_SCALED = 8


class CheckResults(Task):
    """Record `num_values` losses or outputs, from the program's first call on.

    The task does not depend on steps: its result is written as soon as there are enough values, or at the
    end.
    """

    event = "results"

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._safely = functools.partial(guarded, program.log, "results")
        self._num_values: int = order["num_values"]
        self._other_draws: list[str] = order.get("other_draws") or []
        self._nudge: float = order.get("nudge") or 0.0
        self._nudged: set[int] = set()
        self._reference: Any = order.get("reference") or None
        self._still: bool = order.get("still") or False
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()
        self._parts: references.Parts | None = None
        self._metric: str = order.get("metric") or ""
        self._scores: list[float] = []
        self._metric_error = ""
        self._losses: list[Any] = []
        self._outputs: list[list[Digest]] = []
        self._scaled: list[tuple[weakref.ref[Any], Any, Any]] = []
        self._inside_backward = 0
        self._num_calls = 0
        self._num_captured = 0
        self._draws: set[str] = set()
        self._precision = ""

    def reached(self, num_steps: int) -> int:
        return NEVER

    def torch_is_here(self) -> None:
        self._torch = self.program.torch
        self._cover_backward(self._torch)
        self._cover_scaler(self._torch)
        if self._reference is not None:
            self._reference = getattr(self._torch, self._reference)
            references.without_autocast(self._torch)

    def at_exit(self) -> None:
        """Write the values recorded so far as the result."""
        self._read()

    # Losses

    def _cover_backward(self, torch: Any) -> None:
        """Cover `Tensor.backward`."""
        original, is_compiling = torch.autograd.backward, torch.compiler.is_compiling

        @covers(torch.autograd, "backward")
        def backward(*args: Any, **kwargs: Any) -> Any:
            # First, so that a traced call folds to the original.
            if is_compiling() or self.done:
                return original(*args, **kwargs)
            # A backward call inside this one (from checkpointing) has no loss. Devices have their own threads
            # for it.
            if not self._inside_backward:
                self._safely(self._lost, args[0] if args else kwargs.get("tensors"))
            self._inside_backward += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._inside_backward -= 1

    def _cover_scaler(self, torch: Any) -> None:
        scaler = torch.amp.grad_scaler.GradScaler
        original, is_compiling = scaler.scale, torch.compiler.is_compiling

        @covers(scaler, "scale")
        def scale(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, outputs, *args, **kwargs)
            if not (is_compiling() or self.done):
                self._safely(self._was_scaled, scaler, outputs, result)
            return result

    def _was_scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        factor = getattr(scaler, "_scale", None)
        if isinstance(result, self._torch.Tensor) and scaler.is_enabled() and factor is not None:
            self._scaled = [*self._scaled, (weakref.ref(result), outputs.detach(), factor)][-MOST_SCALED:]

    def _lost(self, tensors: Any) -> None:
        torch = self._torch
        if is_capturing(torch):
            self._num_captured += 1
            return
        self._outputs = []
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        with torch.no_grad(), plainly(torch):
            values = [self._unscaled(loss) for loss in losses]
            self._losses.append(sum(values[1:], values[0]))
        if len(self._losses) >= self._num_values:
            self._read()

    def _unscaled(self, loss: Any) -> Any:
        for at, (scaled, original, _) in enumerate(self._scaled):
            if scaled() is loss:
                del self._scaled[at]
                return self._mean(original)
        if self._scaled:
            # This tensor was derived from the scaled loss, for instance by dividing it by the number of
            # accumulated batches.
            (_, _, factor), self._scaled = self._scaled[-1], []
            return self._mean(loss) / factor.to(self._torch.float64)
        return self._mean(loss)

    def _mean(self, tensor: Any) -> Any:
        torch = self._torch
        part = local(tensor)
        return torch.mean(torch.view_as_real(part) if part.is_complex() else part, dtype=torch.float64)

    # Outputs

    def around_calls(self, inner: Any) -> Any:
        make = inner or call_directly

        def around(call: Any, module: Any, args: Any, kwargs: Any) -> Any:
            if self.done:
                return make(call, module, args, kwargs)
            before = self._safely(self._before, module)
            if self._reference is not None:
                args, kwargs = (
                    references.widened(self._torch, given, self._reference) for given in (args, kwargs)
                )
            output = make(call, module, args, kwargs)
            if self._metric:
                self._score(output, args, kwargs)
            self._safely(self._after, before, output)
            return output

        return around

    def _before(self, module: Any) -> dict[str, Any] | None:
        """Return the states of the random number generators."""
        self._num_calls += 1
        if self._num_calls == 1 and self._other_draws:
            self._draw_others()
        if module not in self._met:
            self._met.add(module)
            self._meet(module)
        if self._num_calls > NUM_LOOKED_AT or is_capturing(self._torch):
            return None
        self._precision = self._precision or precision_of(self._torch, module)
        return random_states(self._torch)

    def _draw_others(self) -> None:
        torch = self._torch
        if "cpu" in self._other_draws:
            torch.default_generator.manual_seed(torch.default_generator.initial_seed() + 1)
        if "cuda" in self._other_draws and torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.cuda.initial_seed() + 1)

    def _meet(self, module: Any) -> None:
        torch = self._torch
        try:
            if self._still:
                references.still(torch, module)
            if self._reference is not None:
                references.widen(torch, module, self._reference)
            if self._nudge:
                references.nudge(torch, module, self._nudge, self._nudged)
        except Exception:
            # The results of this call are not the requested ones, so no value may be recorded.
            self._losses, self._outputs, self._reference = [], [], None
            self._read()
            raise
        if self._still and self._parts is None and not is_capturing(torch):
            self._parts = references.Parts(torch, module)

    def _after(self, before: dict[str, Any] | None, output: Any) -> None:
        torch = self._torch
        if self.done:
            return
        if self._parts is not None:
            self._parts.end()
        if is_capturing(torch):
            self._num_captured += 1
            return
        if before is not None:
            now = random_states(torch)
            self._draws |= {kind for kind, state in before.items() if kind in now and now[kind] != state}
        if self._losses or self._inside_backward:
            return
        if len(self._outputs) < self._num_values:
            self._outputs.append(digests_of(torch, output))
        if len(self._outputs) >= self._num_values and (
            not self.program.steps.optimizers or self._num_calls >= PATIENCE * self._num_values
        ):
            self._read()

    def _score(self, output: Any, args: Any, kwargs: Any) -> None:
        name, _, function = self._metric.partition(":")
        try:
            with self._torch.no_grad():
                found = getattr(import_module(name), function)(output, *args, **kwargs)
            found = found.tolist() if hasattr(found, "tolist") else found
            self._scores += [
                float(score) for score in (found if isinstance(found, (list, tuple)) else [found])
            ]
        except Exception as error:
            if by_a_signal(error):
                raise
            self._metric, self._metric_error = "", "%s: %s" % (type(error).__name__, error)

    # The values so far

    def _read(self) -> None:
        what = "losses" if self._losses else "outputs"
        values: list[Any] = []
        parts: list[Any] = []
        try:
            values = [number(float(loss)) for loss in self._losses] or [
                fields_of(call) for call in self._outputs
            ]
            parts = [(name, fields_of(given)) for name, given in (self._parts.found if self._parts else ())]
        except Exception as error:
            # The device may be lost: then there is nothing to compare, and the reader gets the reason.
            self.program.log("results", error)
        self._losses, self._outputs, self._scaled = [], [], []
        self.complete(
            what=what,
            values=values,
            draws=sorted(self._draws),
            precision=self._precision,
            num_captured=self._num_captured,
            parts=parts,
            metric=self._scores,
            metric_error=self._metric_error,
        )
