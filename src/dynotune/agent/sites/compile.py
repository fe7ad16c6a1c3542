"""Compile the outermost module, or the calls that the module's `forward` makes to the module itself."""

from __future__ import annotations

import sys
import weakref

from ..core.covers import covers
from .own_calls import CompiledInside, OwnCalls
from .repeated_shapes import RepeatedShapes
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

_CALLS_OF_ROOTS = "_compiled_call_impl of the outermost modules"
_NO_ROOT = "no outermost module was called"
_NOTHING = "the program compiles nothing"


class CompileSite(Site):
    """Apply `compile.mode` in place, so that a module keeps its class, its parameters' names and its hooks.

    A module is compiled after its first call: objects that the first call creates and keeps (anchors,
    positions, lazy weights) break the graph, and a graph that broke in a loop over layers stays in pieces. A
    module that runs only once is not compiled.

    Some modules get the loader's whole batch (file names among tensors), call themselves with the tensors,
    and then compute the loss. Only the inner calls with tensors are compiled. If the whole module were
    compiled, the graph would break wherever the loss reads values, and torch would compile again for each
    number of targets.

    In a program that trains, calls without gradients run eagerly unless their shapes repeat, as
    `RepeatedShapes` says.

    Within a run, the first calls are over, so whole modules are compiled, and they run eagerly in between.
    `off` makes a program that compiles itself run eagerly.
    """

    is_switched = True
    acts_in_calls = True
    suits_ranks = False  # ranks finish compiling at different steps

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self.compiles = self.value != "off"
        self._roots: list[weakref.ref[Any]] = []
        self._compiled: list[tuple[Any, Any]] = []
        """Within a run: modules with their compiled calls."""
        self._own_calls: dict[int, OwnCalls] = {}
        self._refused: list[str] = []
        self._num_skipped = 0

    def cannot(self) -> str:
        """At the start, each outermost module is asked about when it has run."""
        if self.at_start or self._compiled:
            return ""
        if self.compiles:
            roots = self.roots()
            return next(filter(None, map(self._why_not, roots)), "") if roots else _NO_ROOT
        if not hasattr(self.torch.compiler, "set_stance"):
            return "this version of torch has no stances of its compiler"
        return "" if self.program.num_compilations else _NOTHING

    def on(self) -> None:
        if not self.compiles:
            if not self.at_start:
                self._force_eager()
            return
        if not self._compiled:
            roots = self.roots()
            self._compiled = [(root, self._compile(root)) for root in roots]
            self._roots = list(map(weakref.ref, roots))
        for root, compiled in self._compiled:
            root._compiled_call_impl = compiled

    def off(self) -> None:
        if not self.compiles:
            self.torch.compiler.set_stance("default")
            return
        for root, compiled in self._compiled:
            if root._compiled_call_impl is compiled:
                root._compiled_call_impl = None

    def constructing(self) -> None:
        if self.compiles:
            return
        torch = self.torch
        original = torch.compile

        @covers(torch, "compile")
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._num_skipped += 1
            try:
                self._force_eager()
            except Exception:  # torch before 2.6 has no stances
                model = args[0] if args else kwargs.get("model")
                if isinstance(model, torch.nn.Module):
                    # With `disable`, torch.compile would return the module without a wrapper. But the
                    # wrapper's name is part of the keys of the state dict.
                    return torch._dynamo.disable(model)
                kwargs["disable"] = True
            return original(*args, **kwargs)

    def _force_eager(self) -> None:
        # Not at the start, since importing the compiler takes seconds and some programs never compile.
        from torch._dynamo import eval_frame

        if eval_frame._stance.stance != "force_eager":
            self.torch.compiler.set_stance("force_eager")

    def hold(self) -> None:
        if not self.compiles and self._num_skipped and hasattr(self.torch.compiler, "set_stance"):
            self._force_eager()

    def on_root(self, module: Any) -> None:
        """Compile only the whole module, not submodules that ran by themselves before: a submodule with its
        own graph inside the whole call would end the step of the surrounding CUDA graphs.
        """
        parts = {id(part) for part in module.modules()}
        for root in (ref() for ref in self._roots):
            if root is not None and id(root) in parts:
                root._compiled_call_impl = None
        self._roots = [ref for ref in self._roots if id(ref()) not in parts]
        if self.compiles and not self._why_not(module) and hasattr(module.forward, "__func__"):
            self._own_calls[id(module)] = OwnCalls(module, self.torch.Tensor)

    def root_ran(self, module: Any) -> None:
        if not self.compiles:
            return
        own_calls = self._own_calls.pop(id(module), None)
        if own_calls is not None:
            own_calls.end()
        if reason := self._why_not(module):
            self._refused.append(reason)
            return
        module._compiled_call_impl = self._compile(module, own_calls)
        self._roots.append(weakref.ref(module))

    def _compile(self, module: Any, own_calls: OwnCalls | None = None) -> Any:
        """Return the module's compiled call.

        `own_calls`: the calls that the module's first call made to the module.
        """
        if own_calls is not None and own_calls.once_in_tensors:
            compiled = self.torch.compile(module.forward, mode=self.value)
            return CompiledInside(module, compiled, self.torch.Tensor)
        # Avoid the name `compile`, which a class may use for something else.
        self.torch.nn.Module.compile(module, mode=self.value)
        compiled, module._compiled_call_impl = module._compiled_call_impl, None
        # Within a run, whatever runs now: the module may be switched between two calls of any kind.
        steps = self.program.steps
        trains = steps.has_gradients(module) if own_calls is None else self.torch.is_grad_enabled()
        return RepeatedShapes(module, compiled, self.torch, trains)

    def _why_not(self, module: Any) -> str:
        """Return why a module cannot be compiled; "" if the module can be compiled."""
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            return "the program compiles %s itself" % type(module).__name__
        is_script = isinstance(module, self.torch.jit.ScriptModule)
        return "%s is a TorchScript module" % type(module).__name__ if is_script else ""

    def read_one(self, setting: Planned) -> Answer:
        if not self.compiles:
            return self._read_off(setting)
        roots = [root for root in (ref() for ref in self._roots) if root is not None]
        if not roots:
            detail = "; ".join(self._refused) or _NO_ROOT
            return answer(setting, None, _CALLS_OF_ROOTS, False, detail)
        is_on = all(root._compiled_call_impl is not None for root in roots) and all(
            root._compiled_call_impl is compiled for root, compiled in self._compiled
        )
        inside = [root for root in roots if isinstance(root._compiled_call_impl, CompiledInside)]
        details = [
            *self._refused,
            *("%s in the calls that it makes of itself" % type(one).__name__ for one in inside),
        ]
        standing_in = [one for one in (root._compiled_call_impl for root in roots) if one is not None]
        if standing_in and all(
            isinstance(one, RepeatedShapes) and one.only_ran_eagerly for one in standing_in
        ):
            is_on = False
            details.append("its calls have no gradients and varying shapes, and ran uncompiled")
        detail = "; ".join(dict.fromkeys(details))
        found, ok = self.value if is_on else "off", is_on and not self._refused
        return answer(setting, found, _CALLS_OF_ROOTS, ok, detail)

    def _read_off(self, setting: Planned) -> Answer:
        if not (self._num_skipped or self.program.num_compilations):
            return answer(setting, "off", "calls of torch.compile", True, _NOTHING)
        stance = _stance()
        if stance is None:
            return answer(setting, "off", "calls of torch.compile", True, "made with disable=True")
        is_off = stance == "force_eager"
        return answer(setting, "off" if is_off else "on", "torch.compiler's stance", is_off)


def _stance() -> Any:
    """Return the stance of torch's compiler; None if it is not loaded, or this version has no stances."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(eval_frame, "_stance", None), "stance", None)
