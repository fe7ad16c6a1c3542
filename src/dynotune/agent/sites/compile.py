"""Compile the outermost module, or the calls that the module's `forward` makes to the module itself."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from threading import get_ident

from ..core.covers import covers
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Event, Planned

CALLS_OF_ROOTS = "_compiled_call_impl of the outermost modules"
"""The witness of a compiled module."""
_PLAIN = (int, float, bool, complex, type(None))


class CompileSite(Site):
    """Apply `compile.mode` in place, so that a module keeps its class, its parameters' names and its hooks.

    A module is compiled after its first call: objects that the first call creates and keeps (anchors, positions, lazy
    weights) break the graph, and a graph that broke in a loop over layers stays in pieces. A module that runs only once
    is not compiled.

    Some modules get the loader's whole batch (file names among tensors), call themselves with the tensors, and then
    compute the loss. Only the inner calls with tensors are compiled. If the whole module were compiled, the graph would
    break wherever the loss reads values, and torch would compile again for each number of targets.
    """

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._roots: list[weakref.ref[Any]] = []
        self._own_calls: dict[int, OwnCalls] = {}
        self._refused: list[str] = []
        self._num_skipped = 0

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        if self.value == "off":
            self._turn_off(torch)

    def _turn_off(self, torch: Any) -> None:
        original = torch.compile

        @covers(torch, "compile")
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._num_skipped += 1
            try:
                self._force_eager()
            except Exception:  # torch before 2.6 has no stances
                model = args[0] if args else kwargs.get("model")
                if isinstance(model, torch.nn.Module):
                    # `disable` would return no wrapper, and the wrapper's name is part of the state's keys.
                    return torch._dynamo.disable(model)
                kwargs["disable"] = True
            return original(*args, **kwargs)

    def _force_eager(self) -> None:
        # Not at the start, since importing the compiler takes seconds and some programs never compile.
        from torch._dynamo import eval_frame

        if eval_frame._stance.stance != "force_eager":
            self.torch.compiler.set_stance("force_eager")

    def hold(self) -> None:
        if self.value == "off" and self._num_skipped and hasattr(self.torch.compiler, "set_stance"):
            self._force_eager()

    def on_root(self, module: Any) -> None:
        """Compile only the whole module, not submodules that ran by themselves before: a submodule with its own graph
        inside the whole call would end the step of the surrounding CUDA graphs.
        """
        parts = {id(part) for part in module.modules()}
        for root in (ref() for ref in self._roots):
            if root is not None and id(root) in parts:
                root._compiled_call_impl = None
        self._roots = [ref for ref in self._roots if id(ref()) not in parts]
        if self.value != "off" and not why_not(self.torch, module) and hasattr(module.forward, "__func__"):
            self._own_calls[id(module)] = OwnCalls(module, self.torch.Tensor)

    def root_ran(self, module: Any) -> None:
        if self.value == "off":
            return
        own_calls = self._own_calls.pop(id(module), None)
        if own_calls is not None:
            own_calls.end()
        if reason := why_not(self.torch, module):
            self._refused.append(reason)
            return
        if own_calls is not None and own_calls.once_in_tensors:
            compiled = self.torch.compile(module.forward, mode=self.value)
            module._compiled_call_impl = CompiledInside(module, compiled, self.torch.Tensor)
        else:
            # Avoid the name `compile`, which a class may use for something else.
            self.torch.nn.Module.compile(module, mode=self.value)
        self._roots.append(weakref.ref(module))

    def read(self, setting: Planned) -> Answer:
        if self.value == "off":
            return self._read_off(setting)
        roots = [root for root in (ref() for ref in self._roots) if root is not None]
        if not roots:
            detail = "; ".join(self._refused) or "no outermost module was called"
            return answer(setting, None, CALLS_OF_ROOTS, False, detail)
        compiled = all(root._compiled_call_impl is not None for root in roots)
        inside = [root for root in roots if isinstance(root._compiled_call_impl, CompiledInside)]
        details = [*self._refused, *("%s in the calls that it makes of itself" % type(one).__name__ for one in inside)]
        detail = "; ".join(dict.fromkeys(details))
        return answer(
            setting, self.value if compiled else "off", CALLS_OF_ROOTS, compiled and not self._refused, detail
        )

    def _read_off(self, setting: Planned) -> Answer:
        if not self._num_skipped:
            return answer(setting, "off", "calls of torch.compile", True, "the program compiles nothing")
        if _stance() is None:
            return answer(setting, "off", "calls of torch.compile", True, "made with disable=True")
        return stance_answer(setting)


def _stance() -> Any:
    """Return the stance of torch's compiler; None if it is not loaded, or this version has no stances."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(eval_frame, "_stance", None), "stance", None)


def stance_answer(setting: Planned) -> Answer:
    """Read `compile.mode=off` back: whether compiled calls now run eagerly."""
    is_off = _stance() == "force_eager"
    return answer(setting, "off" if is_off else "on", "torch.compiler's stance", is_off)


def why_not(torch: Any, module: Any) -> str:
    """Return why a module cannot be compiled; "" if the module can be compiled."""
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return "the program compiles %s itself" % type(module).__name__
    is_script = isinstance(module, torch.jit.ScriptModule)
    return "%s is a TorchScript module" % type(module).__name__ if is_script else ""


class OwnCalls:
    """Calls that a module's `forward` makes to the module itself, during the module's first call.

    `once_in_tensors` is true if `forward` called the module exactly once, with only tensors, without further calls
    inside. Several calls would each begin a step of CUDA graphs, which overwrites the results of the previous call.
    """

    def __init__(self, module: Any, tensor: type) -> None:
        outer: list[tuple[int, bool]] = []
        inner: list[bool] = []

        def watched(forward: Any, args: Any, kwargs: Any) -> Any:
            plain, thread = _is_plain((args, kwargs), tensor), get_ident()
            if outer:
                if outer[0][0] == thread:
                    inner.append(plain)
                return forward(*args, **kwargs)
            outer.append((thread, plain))
            try:
                return forward(*args, **kwargs)
            finally:
                self.end()

        self._outer, self._inner = outer, inner
        self._cover = Cover(module, watched)
        self._cover.put_on()

    @property
    def once_in_tensors(self) -> bool:
        return [plain for _, plain in self._outer] == [False] and self._inner == [True]

    def end(self) -> None:
        self._cover.take_off()


class CompiledInside:
    """Stand in for a module's compiled call: call the module as written, but with `compiled` in place of `forward` if
    all inputs are tensors. If the program has replaced `forward` meanwhile, call the replacement.
    """

    def __init__(self, module: Any, compiled: Callable[..., Any], tensor: type) -> None:
        def inside(forward: Any, args: Any, kwargs: Any) -> Any:
            return (compiled if _is_plain((args, kwargs), tensor) else forward)(*args, **kwargs)

        self._module = module
        self._cover = Cover(module, inside)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._cover.put_on():
            return self._module._call_impl(*args, **kwargs)
        try:
            return self._module._call_impl(*args, **kwargs)
        finally:
            self._cover.take_off()


class Cover:
    """Call `call(forward, args, kwargs)` in place of a module's `forward`.

    The cover is a method: if a hook copies or saves the module in a call, the copy has its own cover, and a pickle
    finds the cover by name.

    Raises AttributeError: the module's `forward` is not a method.
    """

    def __init__(self, module: Any, call: Callable[..., Any]) -> None:
        forward = module.forward
        plain = forward.__func__

        @functools.wraps(plain)
        def covered(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call(forward, args, kwargs) if self is module else plain(self, *args, **kwargs)

        self._module, self._forward = module, forward
        self._was_own = "forward" in module.__dict__
        self._covered = types.MethodType(covered, module)

    def put_on(self) -> bool:
        """Wrap `forward`, unless other code has replaced `forward` before; return whether `forward` is wrapped."""
        if self._module.forward != self._forward:
            return False
        self._module.__dict__["forward"] = self._covered
        return True

    def take_off(self) -> None:
        own = self._module.__dict__
        if own.get("forward") is not self._covered:
            return
        if self._was_own:
            own["forward"] = self._forward
        else:
            own.pop("forward", None)


def _is_plain(value: Any, tensor: type) -> bool:
    """Tell whether the value has only tensors and numbers, which a graph accepts."""
    try:
        return _holds_plain(value, tensor)
    except Exception:  # a batch of the program's own class may run any code
        return False


def _holds_plain(value: Any, tensor: type) -> bool:
    if isinstance(value, (tensor, *_PLAIN)):
        return True
    if isinstance(value, (list, tuple)):
        return all(_holds_plain(item, tensor) for item in value)
    return isinstance(value, dict) and all(_holds_plain(item, tensor) for item in dict.values(value))
