"""Apply `precision.autocast` to calls of outermost modules."""

from __future__ import annotations

import weakref

from ..core.covers import covers
from .site import Site, answer, unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.program import Program

_NAMES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


class AutocastSite(Site):
    """Call outermost modules under autocast, and return their outputs in float32.

    A program that is inside its own autocast keeps it, because the program's loss scaling and output types
    fit it. The read-back then compares the program's type with the requested type. `off` overrides the
    program's autocast.

    Within a run, a GradScaler has separate scales with and without autocast.
    """

    is_switched = True
    wants_around = True
    acts_in_calls = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._found: set[str] = set()
        self._refused: list[str] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._sees_scalers = False
        self._scales: dict[bool, list[tuple[Any, Any]]] = {}
        """By whether the setting acts, each scaler with its last state."""
        self._is_on = False
        self._weights: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

    def on(self) -> None:
        if self.value == "fp16" and not self._sees_scalers:
            self._sees_scalers = True
            self._see_new_scalers(self.torch.amp.GradScaler)
        if not self._living_scalers():
            self._scalers = list(map(weakref.ref, self.alive(self.torch.amp.GradScaler)))
        self._exchange(True)

    def off(self) -> None:
        self._exchange(False)

    def _exchange(self, is_on: bool) -> None:
        self._scales[self._is_on] = [(scaler, scaler.state_dict()) for scaler in self._living_scalers()]
        self._is_on = is_on
        for scaler, state in self._scales.get(is_on, ()):
            if state:
                scaler.load_state_dict(state)

    def _living_scalers(self) -> list[Any]:
        return [scaler for scaler in (ref() for ref in self._scalers) if scaler is not None]

    def _see_new_scalers(self, scaler_class: Any) -> None:
        original = scaler_class.__init__

        @covers(scaler_class, "__init__")
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            self._scalers.append(weakref.ref(scaler))

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        torch = self.torch
        device, dtype = self._device_and_dtype(module, args)
        if self.value == "off":
            self._found.add("off")
            if not torch.is_autocast_enabled(device):
                return None
            return torch.autocast(device, enabled=False), unchanged
        if torch.is_autocast_enabled(device):
            own = torch.get_autocast_dtype(device)
            self._found.add(_NAMES.get(str(own), str(own)))
            return None
        reason = self._why_not(module, dtype)
        if reason:
            self._found.add("off")
            if reason not in self._refused:
                self._refused.append(reason)
            return None
        context = torch.autocast(device, dtype=torch.bfloat16 if self.value == "bf16" else torch.float16)
        self._found.add(self.value if getattr(context, "_enabled", True) else "off")
        return context, self._to_float32

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if self.value != "off":
            return args, kwargs
        device, dtype = self._device_and_dtype(module, args)
        if dtype is not self.torch.float32 or not self.torch.is_autocast_enabled(device):
            return args, kwargs
        # Tensors that were made under the program's autocast are in half precision, but its weights are not,
        # so the two do not fit together without autocast.
        return self._to_float32(args), self._to_float32(kwargs)

    def _device_and_dtype(self, module: Any, args: Args) -> tuple[str, Any]:
        """Return device and number type of the module's first floating-point weight, else of the first such
        input."""
        weight = self._weights.get(module, lambda: None)()
        if weight is None:
            weight = next((p for p in module.parameters() if p.is_floating_point()), None)
            if weight is not None:
                # Look for it once, since walking a large model at each call would count as a cost of the
                # setting.
                self._weights[module] = weakref.ref(weight)
        for tensor in (weight, *args):
            if isinstance(tensor, self.torch.Tensor) and tensor.is_floating_point():
                return tensor.device.type, tensor.dtype
        return "cpu", self.torch.float32

    def _why_not(self, module: Any, dtype: Any) -> str:
        torch = self.torch
        if dtype is not torch.float32:
            return "the weights of %s are %s already" % (type(module).__name__, str(dtype).rpartition(".")[2])
        if self.value != "fp16" or not (module.training and torch.is_grad_enabled()):
            return ""
        if any(scaler.is_enabled() for scaler in self._living_scalers()):
            return ""
        return "training in fp16 needs a GradScaler and the program has none: its gradients would underflow"

    def _to_float32(self, value: Any) -> Any:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        if isinstance(value, tuple):
            items = [self._to_float32(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, list):
            return [self._to_float32(item) for item in value] if type(value) is list else value
        if isinstance(value, dict):
            return self._mapping_to_float32(value)
        if hasattr(type(value), "__dataclass_fields__"):
            for name in type(value).__dataclass_fields__:
                object.__setattr__(value, name, self._to_float32(getattr(value, name)))
        return value

    def _mapping_to_float32(self, mapping: Any) -> Any:
        # Convert in place, so that outputs that are mapping and object (transformers) keep class and
        # attributes.
        if type(mapping) is dict:
            return {key: self._to_float32(item) for key, item in mapping.items()}
        for key, item in list(mapping.items()):
            converted = self._to_float32(item)
            if converted is not item:
                mapping[key] = converted
        return mapping

    def read_one(self, setting: Planned) -> Answer:
        witness = "autocast at the outermost modules' calls"
        if not self._found:
            return answer(setting, None, witness, False, "no outermost module was called")
        found = ", ".join(sorted(self._found))
        return answer(setting, found, witness, self._found == {self.value}, "; ".join(self._refused))
