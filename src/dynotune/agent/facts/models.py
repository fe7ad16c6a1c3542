"""Describe the outermost modules: a few calls during warm-up, and how each is built, at the window's end."""

from __future__ import annotations

import functools
import weakref

from ..core import source_location
from ..core.covers import call_directly
from ..core.device import autocast_inside_forward
from ..core.tensors import can_look, class_name, described, shapes, tensors_in
from .model_structure import structure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

    from ..core.annotations import Around, Call, Log

_MOST_MODELS = 256
_MOST_TOLD = 16
_MOST_SHAPES = 64


class _Calls:
    """Calls of one module, with or without gradients; `look` describes the last call that was inspected."""

    def __init__(self) -> None:
        self.begin_anew()
        self.look: dict[str, Any] | None = None

    def begin_anew(self) -> None:
        self.num = self.num_grown = self.num_synced = self.growth = 0
        self.shapes: set[Any] = set()
        self.last: tuple[Any, ...] = ()

    def called_with(self, found: tuple[Any, ...], synced: bool) -> None:
        self.num += 1
        self.num_synced += synced
        grown = [_longer(*pair) for pair in zip(self.last, found)] if len(found) == len(self.last) else [0]
        if grown and min(grown) > 0:
            self.num_grown += 1
            self.growth += max(grown)
        self.last = found
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes.add(found)


def _longer(before: tuple[int, ...], now: tuple[int, ...]) -> int:
    """Return by how much one dimension is longer, if by at most half and if no other dimension differs; else
    0."""
    differ = [(a, b) for a, b in zip(before, now) if a != b]
    if (
        len(before) != len(now)
        or len(differ) != 1
        or differ[0][1] > max(1.5 * differ[0][0], differ[0][0] + 1)
    ):
        return 0
    return max(0, differ[0][1] - differ[0][0])


class _Root:
    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        self.calls = {True: _Calls(), False: _Calls()}
        self.is_odd = False  # inspecting it failed


class Models:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self._roots: dict[int, _Root] = {}
        self._is_found = self._is_over = False
        self.autocast_dtypes: set[str] = set()

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch

    def met(self, module: Any) -> None:
        """Note a module that is about to be called for the first time."""
        known = self._roots.get(id(module))
        if known is not None and known.module() is module:
            return
        for number in [n for n, root in self._roots.items() if root.module() is None]:
            del self._roots[number]
        if len(self._roots) < _MOST_MODELS:
            self._roots[id(module)] = _Root(module)

    def step_found(self) -> None:
        """From now on, count calls of modules as calls within steps."""
        self._is_found = True
        for root in self._roots.values():
            for calls in root.calls.values():
                calls.begin_anew()

    def look_no_more(self) -> None:
        self._is_over = True

    def around(self, inner: Around | None) -> Around:
        """Make the call, by `inner` if given, and inspect the call while the program warms up."""

        make = inner or call_directly

        def around(call: Call, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self._is_over:
                call = functools.partial(self._looked_at, call)
            return make(call, module, args, kwargs)

        return around

    def _looked_at(self, call: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
        look = None
        try:
            look = self._before(module, args, kwargs)
        except Exception as error:
            self._roots[id(module)].is_odd = True
            self._log("call of " + class_name(module), error)
        output = call(module, *args, **kwargs)
        try:
            if look is not None:
                with self._torch._C.DisableTorchFunction():
                    tensor = next(tensors_in(self._torch, output), None)
                    look["output_requires_grad"] = None if tensor is None else bool(tensor.requires_grad)
        except Exception as error:
            self._log("call", error)
        return output

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        torch, root = self._torch, self._roots.get(id(module))
        if root is None or root.is_odd or not can_look(torch):
            return None
        calls = root.calls[bool(torch.is_grad_enabled())]
        with torch._C.DisableTorchFunction():
            calls.called_with(
                shapes(torch, args, kwargs), bool(getattr(module, "require_backward_grad_sync", False))
            )
        if calls.num & (calls.num - 1) and calls.look is not None:
            return None  # less and less often: the 1st, 2nd, 4th, 8th …
        with torch._C.DisableTorchFunction():
            requires_grad = any(tensor.requires_grad for tensor in tensors_in(torch, (args, kwargs)))
        calls.look = {
            "grad_enabled": bool(torch.is_grad_enabled()),
            "inference_mode": bool(torch.is_inference_mode_enabled()),
            "autocast": self._autocast(torch, module),
            "training": bool(module.training),
            "inputs": described(torch, (args, kwargs)),
            "input_requires_grad": requires_grad,
            "place": {"function": source_location.place()},
        }
        return calls.look

    def _autocast(self, torch: Any, module: Any) -> str | None:
        kind = next((tensor.device.type for tensor in module.parameters()), "cpu")
        found = None
        if torch.is_autocast_enabled(kind):
            found = str(torch.get_autocast_dtype(kind)).replace("torch.", "")
        found = found or autocast_inside_forward(torch, module)
        if found is not None:
            self.autocast_dtypes.add(found)
        return found

    # At the window's end

    def facts(self, trains: bool, updated: Container[int]) -> list[dict[str, Any]]:
        """Return fields of `schema.model.Model` for the largest 16 modules in steps, if possible with
        parameters.

        Args:
            trains: whether the steps update parameters; then calls with gradients are reported.
            updated: identities of the parameters that optimizers have.
        """
        alive = [(root, module) for root in self._roots.values() if (module := root.module()) is not None]
        stepping = [entry for entry in alive if any(calls.num for calls in entry[0].calls.values())]
        told = ((root, self._describe(module, updated)) for root, module in stepping or alive)
        described_ = [(root, fields) for root, fields in told if fields]
        if any(fields["num_tensors"] for _, fields in described_):
            described_ = [(root, fields) for root, fields in described_ if fields["num_tensors"]]
        for root, fields in described_:
            fields["call"] = self._call(root, trains)
        described_.sort(key=lambda entry: (trains and not _with_grad(entry[1]), -entry[1]["num_parameters"]))
        return [fields for _, fields in described_[:_MOST_TOLD]]

    def _describe(self, module: Any, updated: Container[int]) -> dict[str, Any] | None:
        try:
            return structure(self._torch, module, updated)
        except Exception as error:
            self._log("model " + class_name(module), error)
            return None

    def _call(self, root: _Root, trains: bool) -> dict[str, Any] | None:
        calls = max(
            root.calls.items(), key=lambda item: (trains and item[0] and item[1].num > 0, item[1].num)
        )[1]
        if calls.look is None or (self._is_found and not calls.num):
            return None  # calls before the first step say nothing about the steps
        num_shapes = len(calls.shapes) if self._is_found and calls.shapes else None
        counts = {"num": calls.num, "num_grown": calls.num_grown, "num_synced": calls.num_synced}
        counts["growth"] = calls.growth
        return {**calls.look, "num_input_shapes": num_shapes, **counts}


def _with_grad(fields: dict[str, Any]) -> bool:
    return bool(fields["call"] and fields["call"]["grad_enabled"])
