"""Quantize weights of `nn.Linear` to 8 bits, with torchao from the user's environment, while nothing is
trained."""

from __future__ import annotations

import weakref
from importlib import import_module

from .site import NotSwitched, Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.program import Program

_CONFIGS = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "int8-weights": "Int8WeightOnlyConfig",
    "fp8": "Float8DynamicActivationFloat8WeightConfig",
    "fp8-weights": "Float8WeightOnlyConfig",
}
# On a GPU, torchao copies 8-bit integer matrices of other sizes to the host and multiplies them there.
_MULTIPLE = 8
_NO_LAYERS = "no module that was called has an nn.Linear"
_TRAINS = "it trains, or runs in training mode with gradients, and torchao's quantization is for inference"


class QuantizeSite(Site):
    """Apply `precision.quantize` and `precision.quantize_keep`, the names of modules that are not quantized.

    A quantized module that is called for training gets its original weights back, if an optimizer has kept
    them. Within a run, the site keeps them.
    """

    is_switched = True
    wants_around = True
    acts_in_calls = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        asked = {setting["knob"]: setting["value"] for setting in planned}
        self._kind: str = asked.get("precision.quantize", "")
        self._keep = [name for name in asked.get("precision.quantize_keep", "").split(",") if name]
        self._names: set[str] = set()
        self._own: list[tuple[Any, Any]] = []
        """References to the quantized layers and to their original weights."""
        self._kept: list[tuple[Any, Any, Any]] = []
        """Within a run: the quantized layers, their original weights and their quantized weights."""
        self._counts: list[str] = []

    def cannot(self) -> str:
        """At the start, each outermost module is asked about when it is called."""
        if not self._kind:
            return "precision.quantize is not set"
        return _TRAINS if self.program.steps.optimizers else ""

    def on(self) -> None:
        if not self._kept:
            for root in self.roots():
                self.on_root(root)
                self.check(True)
            if not self._own and not self.at_start:
                raise NotSwitched(_NO_LAYERS)
        exchange((layer, quantized) for layer, _, quantized in self._kept)

    def off(self) -> None:
        exchange((layer, weight) for layer, weight, _ in self._kept)

    def on_root(self, module: Any) -> None:
        try:
            pairs = self.quantized(module)
        except Exception as error:
            self._give_back(str(error))
            return
        self._own += [(weakref.ref(layer), weakref.ref(weight)) for layer, weight in pairs]
        if not self.at_start:
            self._kept += [(layer, weight, layer.weight) for layer, weight in pairs]

    def _give_back(self, why: str) -> None:
        """Give all modules their original weights back, where these were kept; then no quantized layer
        counts."""
        alive = [(layer(), weight()) for layer, weight in self._own]
        exchange((layer, weight) for layer, weight in alive if layer is not None and weight is not None)
        self._own, self.failure = [], why

    def quantized(self, root: Any) -> list[tuple[Any, Any]]:
        """Quantize layers of a module in place; return the quantized layers with their original weights.

        Raises Exception: the module trains, torchao is missing or fails, or no layer was quantized; all
        weights stay.
        """
        torch, names = self.torch, dict(root.named_modules())
        if not any(isinstance(one, torch.nn.Linear) for one in names.values()):
            return []  # for example a loss function
        if self._trains(root):
            raise RuntimeError(_TRAINS)
        self._names.update(names)  # a layer of one model need not exist in another
        if unknown := [name for name in self._keep if name not in self._names]:
            raise RuntimeError("%s has no module %s" % (type(root).__name__, unknown[0]))
        try:
            library = import_module("torchao.quantization")
            config = getattr(library, _CONFIGS[self._kind])()
        except (ImportError, AttributeError) as error:
            raise RuntimeError("torchao is missing or too old: %s" % error) from error
        unfit = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
        layers = {
            n: m for n, m in names.items() if isinstance(m, torch.nn.Linear) and not isinstance(m, unfit)
        }
        own = [
            (layer, layer.weight)
            for name, layer in layers.items()
            if type(layer.weight) is torch.nn.Parameter
            and not any(f"{name}.".startswith(f"{k}.") for k in self._keep)
            and (self._kind != "int8" or _fits_int8(layer.weight))
        ]
        try:
            with torch.inference_mode(False), torch.no_grad():
                library.quantize_(
                    root, config, filter_fn=lambda layer, _: any(layer is one for one, _ in own)
                )
        except BaseException:
            exchange(own)
            raise
        exchange((layer, weight) for layer, weight in own if self._has_kept(layer, weight))
        pairs = [(layer, weight) for layer, weight in own if layer.weight is not weight]
        self._counts.append("%d of %d nn.Linear" % (len(pairs), len(layers)))
        if not pairs:
            raise RuntimeError("torchao quantizes %s" % self._counts[-1])
        return pairs

    def _has_kept(self, layer: Any, weight: Any) -> bool:
        """Tell whether the layer has its weight still; torchao may put it into a new Parameter."""
        return type(layer.weight) is self.torch.nn.Parameter and layer.weight.data_ptr() == weight.data_ptr()

    def _trains(self, module: Any) -> bool:
        return bool(module.training and self.torch.is_grad_enabled())

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        if self._own and self._trains(module):
            self._give_back(_TRAINS)
        return None

    def read_one(self, setting: Planned) -> Answer:
        detail, witness = "; ".join(self._counts) or _NO_LAYERS, "weights of the quantized layers"
        is_on = bool(self._own)
        if not all(layer.weight is quantized for layer, _, quantized in self._kept):
            is_on, detail = False, "a layer has another weight than its quantized one"
        return answer(setting, setting["value"] if is_on else None, witness, is_on, detail)


def _fits_int8(weight: Any) -> bool:
    return bool(weight.is_cpu or not any(size % _MULTIPLE for size in weight.shape))


def exchange(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Give each layer its weight."""
    for layer, weight in pairs:
        layer.weight = weight
