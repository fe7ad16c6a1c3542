"""Leave calls without gradients uncompiled while their shapes vary."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class RepeatedShapes:
    """Stand in for a module's compiled call, and call the module as written where compiling does not pay.

    A program that trains may also generate text, whose input grows by a token with each call: torch would
    compile for the first lengths, capture a CUDA graph for each one, and compile the steps for varying
    shapes from then on. So, from the first call with gradients on, a call without is compiled only if the
    call without gradients before it had the same shapes, and steps were compiled before. A program that never
    computes gradients is compiled throughout.

    `trains`: whether the program is known to compute gradients.
    """

    def __init__(self, module: Any, compiled: Callable[..., Any], torch: Any, trains: bool) -> None:
        self._module, self._compiled, self._torch = module, compiled, torch
        self._trains, self._has_steps = trains, False
        self._shapes: object = None
        self._num_eager = self._num_compiled = 0

    @property
    def only_ran_eagerly(self) -> bool:
        return bool(self._num_eager) and not self._num_compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._torch.is_grad_enabled():
            self._trains = self._has_steps = True
        elif self._trains and not self._repeats(args, kwargs):
            self._num_eager += 1
            return self._module._call_impl(*args, **kwargs)
        self._num_compiled += 1
        return self._compiled(*args, **kwargs)

    def _repeats(self, args: Any, kwargs: Any) -> bool:
        tensor = self._torch.Tensor
        shapes = [
            (name, tuple(value.shape))
            for name, value in [*enumerate(args), *kwargs.items()]
            if isinstance(value, tensor)
        ]
        before, self._shapes = self._shapes, shapes
        return self._has_steps and before == shapes
