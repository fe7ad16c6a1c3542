"""Counts the shapes that outermost modules are called with, from the program's first call on."""

from __future__ import annotations

import atexit
import inspect
from time import perf_counter

from ..core.annotations import Any
from ..core.covers import call_directly
from ..core.errors import guarded
from ..core.tensors import can_look, class_name, described
from .onnx_export import OnnxExport
from .task import NEVER, Task

MOST_DIFFERENT = 2048


class RecordShapes(Task):
    """Counts until `num_calls` or `most_s` have passed, or one kind of module got `MOST_DIFFERENT` shapes, or the
    program ends. It changes no step, so it waits for none.
    """

    event = "shapes"
    _until_s = 0.0
    _export: Any = None
    _has_ended = False

    def reached(self, num_steps: int) -> int:
        return NEVER

    def around_calls(self, inner: Any) -> Any:
        make = inner or call_directly
        # By class and size, for modules come and go.
        self._found: dict[tuple[str, int], dict[Any, int]] = {}

        def around(call: Any, module: Any, args: Any, kwargs: Any) -> Any:
            if not (self.done or self._has_ended) and can_look(self.program.torch):
                guarded(self.program.log, "shapes", self._count, module, args, kwargs)
            return make(call, module, args, kwargs)

        return around

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        inner = getattr(module, "_orig_mod", module)  # of torch.compile
        if "parallel" in type(inner).__module__:
            inner = getattr(inner, "module", inner)
        try:
            bound = inspect.signature(inner.forward).bind(*args, **kwargs)
        except ValueError:  # a traced module's is C++
            bound = inspect.signature(lambda *input, **rest: None).bind(*args, **kwargs)
        rest = {one.name for one in bound.signature.parameters.values() if one.kind is one.VAR_KEYWORD}
        found = []
        for name, value in {**bound.arguments, **kwargs}.items():
            tensors = described(self.program.torch, value) if name not in rest else []
            names = [name] if len(tensors) == 1 else ["%s.%d" % (name, at) for at in range(len(tensors))]
            found += [(one, tuple(told["shape"]), told["dtype"]) for one, told in zip(names, tensors)]
        size = sum(int(parameter.numel()) for parameter in module.parameters())
        counts = self._found.setdefault((class_name(inner), size), {})
        counts[tuple(found)] = counts.get(tuple(found), 0) + 1
        if self.order.get("onnx") and not self.program.ranks().get("rank"):
            if self._export is None:
                self._export = OnnxExport(self.program.torch, self.program.folder)
                # Before torch takes its operators back at exit.
                atexit.register(guarded, self.program.log, "shapes", self.at_exit)
            self._export.keep(size, inner, bound)
        self._until_s = self._until_s or perf_counter() + self.order["most_s"]
        num_calls = sum(sum(of_one.values()) for of_one in self._found.values())
        if num_calls >= self.order["num_calls"] or perf_counter() > self._until_s or len(counts) >= MOST_DIFFERENT:
            self.at_exit()

    def at_exit(self) -> None:
        if self._has_ended:
            return  # it was exporting
        self._has_ended, modules = True, []
        for (name, size), counts in self._found.items():
            dtypes = {one: dtype for call in counts for one, _, dtype in call}
            calls = [{"num": num, "shapes": {one: sizes for one, sizes, _ in call}} for call, num in counts.items()]
            modules.append({"module": name, "num_parameters": size, "dtypes": dtypes, "calls": calls})
        self.complete(modules=modules, onnx=self._export.made() if self._export else None)
