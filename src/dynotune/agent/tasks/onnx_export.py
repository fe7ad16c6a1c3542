"""Exports a module to ONNX, and computes on its own batches what the exported model is compared with."""

from __future__ import annotations

import copy
import importlib
import os
from traceback import walk_tb

from ..core.annotations import Any
from ..core.source_location import WHOSE_USER, function, whose
from .references import widened

MOST_BATCHES, MOST_TEXT = 4, 300


class OnnxExport:
    """Task that keeps batches of different shapes that the largest module got. `folder`: where they are written."""

    def __init__(self, torch: Any, folder: str) -> None:
        self._torch, self._folder, self._size = torch, folder, -1
        self._module: Any = None

    def keep(self, size: int, module: Any, bound: Any) -> None:
        """Keep `bound`, arguments of a call of the module, which has so many parameters."""
        kind = [(name, getattr(one, "ndim", None)) for name, one in bound.arguments.items()]
        if size > self._size:
            self._size, self._module = size, module  # a function that has returned no longer holds it
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
        """Write the model and its batches. Gives their number, or why there is none and the line that says so."""
        try:
            with self._torch.inference_mode(False), self._torch.no_grad():
                return {"num_batches": self._made()}
        except Exception as error:
            return {"error": self._told(error)}

    def _made(self) -> int:
        torch, numpy = self._torch, importlib.import_module("numpy")
        leaves = importlib.import_module("torch.utils._pytree").tree_leaves
        model = copy.deepcopy(self._module).eval()
        batches = [self._batches[key] for key in sorted(self._batches, key=lambda key: [shape for _, shape in key])]
        # The largest: a size of 1 would be taken for one that never changes.
        traced = torch.export.export(
            model, batches[-1].args, batches[-1].kwargs, dynamic_shapes=self._varying, strict=False
        )
        torch.onnx.export(traced, f=os.path.join(self._folder, "model.onnx"), dynamo=True, verbose=False)
        own = [leaves(model(*one.args, **one.kwargs)) for one in batches]
        model.double()
        for number, batch in enumerate(batches):
            args, kwargs = (widened(torch, given, torch.float64) for given in (batch.args, batch.kwargs))
            found = [("input:" + name, one) for name, one in batch.arguments.items() if isinstance(one, torch.Tensor)]
            for part, values in (("own", own[number]), ("reference", leaves(model(*args, **kwargs)))):
                outputs = [one for one in values if isinstance(one, torch.Tensor)]
                found += [("%s:%d" % (part, at), one) for at, one in enumerate(outputs)]
            arrays = {name: one.cpu().numpy() for name, one in found}
            numpy.savez(os.path.join(self._folder, "onnx-%d.npz" % number), **arrays)
        return len(batches)

    def _told(self, error: BaseException) -> str:
        """Tell the innermost reason in one line, and the line of the user's module that it is about."""
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
