"""Apply settings to the outermost module: memory layout, autocast, gradient mode.

The settings are applied at the module's first call, after the program has placed its weights. Torch may be in inference
mode then (a sanity check before training), and tensors created in inference mode cannot be trained. So the settings
leave inference mode.
"""

from __future__ import annotations

import weakref

from ..core.covers import covers
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Args, Event, Kwargs, Planned, Surroundings

HAS_OPTIMIZER = "the program has an optimizer, so it needs gradients"


class ChannelsLastSite(Site):
    """Apply `layout.channels_last`: convert weights once, and inputs at each call."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self.wants_around = bool(self.value)
        self._format: Any = None
        self._weights: list[weakref.ref[Any]] = []

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        self._format = torch.channels_last if self.value else torch.contiguous_format

    def watch(self, weights: list[Any]) -> None:
        """Read back the layout of weights that another class of the agent converted."""
        self._weights = list(map(weakref.ref, weights))

    def on_root(self, module: Any) -> None:
        torch = self.torch
        with torch.inference_mode(False), torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=self._format)
                    self._weights.append(weakref.ref(parameter))

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        return tuple(map(self._convert, args)), {name: self._convert(v) for name, v in kwargs.items()}

    def _convert(self, value: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            if value.dim() == 4 and value.is_floating_point():
                return value.contiguous(memory_format=self._format)
        elif type(value) in (list, tuple):
            return type(value)(map(self._convert, value))
        elif type(value) is dict:
            return {key: self._convert(item) for key, item in value.items()}
        return value

    def read(self, setting: Planned) -> Answer:
        witness = "strides of the 4-D weights"
        weights = [weight for weight in (ref() for ref in self._weights) if weight is not None]
        # A weight with a 1x1 kernel or one channel has the strides of both layouts.
        telling = [weight for weight in weights if min(weight.shape[1], weight.shape[2] * weight.shape[3]) > 1]
        if not telling:
            detail = "no outermost module has a 4-D weight whose layout could differ"
            return answer(setting, None, witness, False, detail)
        last = [weight.is_contiguous(memory_format=self.torch.channels_last) for weight in telling]
        found = any(last) if not self.value else all(last)
        return answer(setting, found, witness, found == self.value)


class AutocastSite(Site):
    """Apply `precision.autocast` around each call of an outermost module, and return its outputs in float32.

    A program that is inside its own autocast keeps it, because the program's loss scaling and output types fit it. The
    read-back then compares the program's type with the requested type. `off` overrides the program's autocast.
    """

    wants_around = True

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._found: set[str] = set()
        self._refused: list[str] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._weights: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        self._dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self._names = {dtype: name for name, dtype in self._dtypes.items()}
        if self.value == "fp16":
            self._watch_scalers(torch.amp.GradScaler)

    def _watch_scalers(self, scaler_class: Any) -> None:
        original, scalers = scaler_class.__init__, self._scalers

        @covers(scaler_class, "__init__")
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            scalers.append(weakref.ref(scaler))

    def watch(self, scalers: list[Any]) -> None:
        self._scalers.extend(map(weakref.ref, scalers))

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        torch = self.torch
        device, dtype = self._device_and_dtype(module, args)
        if self.value == "off":
            self._found.add("off")
            if not torch.is_autocast_enabled(device):
                return None
            return torch.autocast(device, enabled=False), _identity
        if torch.is_autocast_enabled(device):
            own = torch.get_autocast_dtype(device)
            self._found.add(self._names.get(own, str(own)))
            return None
        reason = self._why_not(module, dtype)
        if reason:
            self._found.add("off")
            if reason not in self._refused:
                self._refused.append(reason)
            return None
        context = torch.autocast(device, dtype=self._dtypes[self.value])
        self._found.add(self.value if getattr(context, "_enabled", True) else "off")
        return context, self._to_float32

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if self.value != "off":
            return args, kwargs
        device, dtype = self._device_and_dtype(module, args)
        if dtype is not self.torch.float32 or not self.torch.is_autocast_enabled(device):
            return args, kwargs
        # Tensors made under the program's autocast are in half precision, and its weights are not.
        return self._to_float32(args), self._to_float32(kwargs)

    def _device_and_dtype(self, module: Any, args: Args) -> tuple[str, Any]:
        """Return device and number type of the module's first floating-point weight, else of the first such input."""
        weight = self._weights.get(module, lambda: None)()
        if weight is None:
            weight = next((p for p in module.parameters() if p.is_floating_point()), None)
            if weight is not None:
                # Look for it once, since walking a large model at each call would count as a cost of the setting.
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
        if any(scaler is not None and scaler.is_enabled() for scaler in (ref() for ref in self._scalers)):
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
        # Convert in place, so that outputs that are mapping and object (transformers) keep class and attributes.
        if type(mapping) is dict:
            return {key: self._to_float32(item) for key, item in mapping.items()}
        for key, item in list(mapping.items()):
            converted = self._to_float32(item)
            if converted is not item:
                mapping[key] = converted
        return mapping

    def read(self, setting: Planned) -> Answer:
        witness = "autocast at the outermost modules' calls"
        if not self._found:
            return answer(setting, None, witness, False, "no outermost module was called")
        found = ", ".join(sorted(self._found))
        return answer(setting, found, witness, self._found == {self.value}, "; ".join(self._refused))


class GradModeSite(Site):
    """Apply `grad.mode`: call outermost modules without gradients, until the program makes an optimizer."""

    wants_around = True

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._why_not, self._has_acted = "no outermost module was called with gradients", False

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        optimizer = torch.optim.Optimizer
        original = optimizer.__init__

        @covers(optimizer, "__init__")
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            self._why_not, self._has_acted = HAS_OPTIMIZER, False
            original(made, *args, **kwargs)

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        if self._why_not == HAS_OPTIMIZER or not self.torch.is_grad_enabled():
            return None
        self._has_acted = True
        return getattr(self.torch, self.value)(), _identity

    def read(self, setting: Planned) -> Answer:
        found, detail = (self.value, "") if self._has_acted else (None, self._why_not)
        return answer(setting, found, "gradient mode at the outermost modules' calls", self._has_acted, detail)


def _identity(value: Any) -> Any:
    return value
