"""Count the shapes of inputs of outermost modules, from the program's first call on."""

from __future__ import annotations

import atexit
import copy
import importlib
import inspect
import os
from time import perf_counter
from traceback import walk_tb

from ..core.covers import call_directly
from ..core.errors import guarded
from ..core.source_location import WHOSE_USER, function, whose
from ..core.tensors import can_look, class_name, described
from .references import widened
from .task import NEVER, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_DIFFERENT = 2048
MOST_BATCHES, MOST_TEXT = 4, 300


class RecordShapes(Task):
    """Count until `num_calls` calls or `most_s` seconds have passed, one kind of module got `MOST_DIFFERENT`
    shapes, or the program ends. The task does not depend on steps.
    """

    event = "shapes"
    _until_s = 0.0
    _export: Any = None
    _has_ended = False

    def reached(self, num_steps: int) -> int:
        return NEVER

    def around_calls(self, inner: Any) -> Any:
        make = inner or call_directly
        # By class and size, because modules come and go.
        self._found: dict[tuple[str, int], dict[Any, int]] = {}

        def around(call: Any, module: Any, args: Any, kwargs: Any) -> Any:
            if not (self.done or self._has_ended) and can_look(self.program.torch):
                guarded(self.program.log, "shapes", self._count, module, args, kwargs)
            return make(call, module, args, kwargs)

        return around

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        inner = getattr(module, "_orig_mod", module)  # torch.compile's flag
        if "parallel" in type(inner).__module__:
            inner = getattr(inner, "module", inner)
        try:
            bound = inspect.signature(inner.forward).bind(*args, **kwargs)
        except ValueError:  # a traced module's forward is C++ code
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
                # Before torch removes its operators at exit.
                atexit.register(guarded, self.program.log, "shapes", self.at_exit)
            self._export.keep(size, inner, bound)
        self._until_s = self._until_s or perf_counter() + self.order["most_s"]
        num_calls = sum(sum(of_one.values()) for of_one in self._found.values())
        if (
            num_calls >= self.order["num_calls"]
            or perf_counter() > self._until_s
            or len(counts) >= MOST_DIFFERENT
        ):
            self.at_exit()

    def at_exit(self) -> None:
        if self._has_ended:
            return  # an export was running
        self._has_ended, modules = True, []
        for (name, size), counts in self._found.items():
            dtypes = {one: dtype for call in counts for one, _, dtype in call}
            calls = [
                {"num": num, "shapes": {one: sizes for one, sizes, _ in call}} for call, num in counts.items()
            ]
            modules.append({"module": name, "num_parameters": size, "dtypes": dtypes, "calls": calls})
        self.complete(modules=modules, onnx=self._export.made() if self._export else None)


class OnnxExport:
    """Keep batches of different shapes for the largest module. `folder`: folder to which batches are
    written."""

    def __init__(self, torch: Any, folder: str) -> None:
        self._torch, self._folder, self._size = torch, folder, -1
        self._module: Any = None

    def keep(self, size: int, module: Any, bound: Any) -> None:
        """Keep `bound`, the arguments of a call of a module with `size` parameters."""
        kind = [(name, getattr(one, "ndim", None)) for name, one in bound.arguments.items()]
        if size > self._size:
            self._size, self._module = size, module  # a function that has returned no longer keeps it alive
            self._batches: dict[Any, Any] = {}
            self._varying: dict[str, Any] = dict.fromkeys(bound.arguments)
            self._kind = kind  # an engine has a fixed set of inputs
        tensors = {name: one for name, one in bound.arguments.items() if isinstance(one, self._torch.Tensor)}
        shapes = tuple((name, tuple(one.shape)) for name, one in tensors.items())
        if self._module is not module or kind != self._kind or shapes in self._batches:
            return
        for (name, ours), (_, first) in zip(shapes, next(iter(self._batches), shapes)):
            changed = {at: self._torch.export.Dim.DYNAMIC for at, one in enumerate(ours) if one != first[at]}
            self._varying[name] = {**(self._varying.get(name) or {}), **changed}
        if len(self._batches) < MOST_BATCHES:
            self._batches[shapes] = kept = copy.copy(bound)
            copies = {name: one.detach().clone() for name, one in tensors.items()}
            kept.arguments = type(bound.arguments)({**bound.arguments, **copies})

    def made(self) -> dict[str, Any]:
        """Write the model and its batches. Return the number of batches, or a failure's reason and source
        line."""
        try:
            with self._torch.inference_mode(False), self._torch.no_grad():
                return {"num_batches": self._made()}
        except Exception as error:
            return {"error": self._told(error)}

    def _made(self) -> int:
        torch, numpy = self._torch, importlib.import_module("numpy")
        leaves = importlib.import_module("torch.utils._pytree").tree_leaves
        model = copy.deepcopy(self._module).eval()
        batches = [
            self._batches[key] for key in sorted(self._batches, key=lambda key: [shape for _, shape in key])
        ]
        # Use the largest batch, because a size of 1 would be taken for a constant.
        traced = torch.export.export(
            model, batches[-1].args, batches[-1].kwargs, dynamic_shapes=self._varying, strict=False
        )
        torch.onnx.export(traced, f=os.path.join(self._folder, "model.onnx"), dynamo=True, verbose=False)
        own = [leaves(model(*one.args, **one.kwargs)) for one in batches]
        model.double()
        for number, batch in enumerate(batches):
            args, kwargs = (widened(torch, given, torch.float64) for given in (batch.args, batch.kwargs))
            found = [
                ("input:" + name, one)
                for name, one in batch.arguments.items()
                if isinstance(one, torch.Tensor)
            ]
            for part, values in (("own", own[number]), ("reference", leaves(model(*args, **kwargs)))):
                outputs = [one for one in values if isinstance(one, torch.Tensor)]
                found += [("%s:%d" % (part, at), one) for at, one in enumerate(outputs)]
            arrays = {name: one.cpu().numpy() for name, one in found}
            numpy.savez(os.path.join(self._folder, "onnx-%d.npz" % number), **arrays)
        return len(batches)

    def _told(self, error: BaseException) -> str:
        """Return the innermost reason of a failed export, and the source line of the user's module in
        question."""
        frames = list(walk_tb(error.__traceback__))
        while error.__cause__ is not None:
            error = error.__cause__
            frames += walk_tb(error.__traceback__)
        place = ""
        for frame, line in frames:
            if whose(frame.f_code, frame.f_globals) == WHOSE_USER:
                place = function(frame.f_code, line)
            # The operator that the exporter was translating.
            stack = getattr(frame.f_locals.get("node"), "meta", {}).get("stack_trace") or ""
            place = stack.strip().rpartition("File ")[2].partition("\n")[0] or place
        words = " ".join(str(error).split())[:MOST_TEXT]
        return "%s: %s%s" % (type(error).__name__, words, " (%s)" % place if place else "")
