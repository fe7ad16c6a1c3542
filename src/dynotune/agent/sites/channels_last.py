"""Apply `layout.channels_last` to outermost modules: convert weights once, and inputs at each call.

At the start, weights are converted at the module's first call, after the program has placed them. Torch may
be in inference mode then (a sanity check before training), and tensors created in inference mode cannot be
trained. So the conversion leaves inference mode.
"""

from __future__ import annotations

import weakref

from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned
    from ..core.program import Program

_NO_WEIGHT = "no outermost module has a 4-D weight whose layout could differ"


class ChannelsLastSite(Site):
    """Convert 4-D weights, with gradients and the optimizer's state for them, and the inputs of calls."""

    is_switched = True
    acts_in_calls = True
    suits_ranks = False  # gradient buckets are views in the original layout of the weights

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self.wants_around = bool(self.value)
        self._weights: list[weakref.ref[Any]] = []
        self._own: list[tuple[Any, Any]] = []
        """Within a run: weights with their own layouts."""
        self._optimizers: list[Any] | None = None

    def cannot(self) -> str:
        """At the start, the weights come later."""
        return "" if self.at_start or any(map(self._in_4d, self.roots())) else _NO_WEIGHT

    def has_already(self) -> bool:
        weights = [weight for root in self.roots() for weight in self._in_4d(root)]
        return all(weight.is_contiguous(memory_format=self._format) for weight in weights)

    def on(self) -> None:
        layouts = {True: self.torch.contiguous_format, False: self.torch.channels_last}
        weights = [weight for root in self.roots() for weight in self._in_4d(root)]
        self._own = [(weight, layouts[weight.is_contiguous()]) for weight in weights]
        self._weights = []
        for root in self.roots():
            self.on_root(root)

    def off(self) -> None:
        for weight, layout in self._own:
            self._convert(weight, layout)
        self._own = []

    def on_root(self, module: Any) -> None:
        for weight in self._in_4d(module):
            self._convert(weight, self._format)
            self._weights.append(weakref.ref(weight))

    def _convert(self, weight: Any, layout: Any) -> None:
        if self._optimizers is None:
            self._optimizers = self.alive(self.torch.optim.Optimizer)
        with self.torch.inference_mode(False), self.torch.no_grad():
            weight.data = weight.data.contiguous(memory_format=layout)
            if weight.grad is not None:
                weight.grad = weight.grad.contiguous(memory_format=layout)
            for optimizer in self._optimizers:
                state = optimizer.state.get(weight, {})
                for name, value in list(state.items()):
                    if isinstance(value, self.torch.Tensor) and value.shape == weight.shape:
                        state[name] = value.contiguous(memory_format=layout)

    @property
    def _format(self) -> Any:
        return self.torch.channels_last if self.value else self.torch.contiguous_format

    @staticmethod
    def _in_4d(module: Any) -> list[Any]:
        return [weight for weight in module.parameters() if weight.dim() == 4]

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        return tuple(map(self._converted, args)), {name: self._converted(v) for name, v in kwargs.items()}

    def _converted(self, value: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            if value.dim() == 4 and value.is_floating_point():
                return value.contiguous(memory_format=self._format)
        elif type(value) in (list, tuple):
            return type(value)(map(self._converted, value))
        elif type(value) is dict:
            return {key: self._converted(item) for key, item in value.items()}
        return value

    def read_one(self, setting: Planned) -> Answer:
        witness = "strides of the 4-D weights"
        weights = [weight for weight in (ref() for ref in self._weights) if weight is not None]
        # A weight with a 1x1 kernel or one channel has the strides of both layouts.
        telling = [
            weight for weight in weights if min(weight.shape[1], weight.shape[2] * weight.shape[3]) > 1
        ]
        if not telling:
            return answer(setting, None, witness, False, _NO_WEIGHT)
        last = [weight.is_contiguous(memory_format=self.torch.channels_last) for weight in telling]
        found = any(last) if not self.value else all(last)
        return answer(setting, found, witness, found == self.value)
