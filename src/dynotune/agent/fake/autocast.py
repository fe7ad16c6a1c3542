"""Implement CUDA's autocast in Python, since torch's own asks each tensor's device, which is not CUDA here.

Torch decides which operators autocast affects. Operators in neither of the two lists below run in float32.
Source: torch's `aten/src/ATen/autocast_mode.h`.
"""

from __future__ import annotations

import warnings

from ..core.covers import covers
from .recorder import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# fmt: off
_LOWER = {
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linear",  # noqa: E501
    "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
}
_WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",  # noqa: E501
    "scatter_add", "cat", "stack",
}
# fmt: on
_KEY = "AutocastCUDA"
_kept: list[Any] = []


def install(torch: Any) -> None:
    """Take over autocast for operators on tensors of the simulated device."""
    library = torch.library.Library("aten", "IMPL", _KEY)
    _kept.append(library)  # its registrations end with this object
    casts = _Casts(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that a kernel is replaced
        for full in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
            space, _, name = full.partition("::")
            base, _, overload = name.partition(".")
            if space == "aten" and base != "binary_cross_entropy":
                library.impl(
                    name, casts.around(base, getattr(getattr(torch.ops.aten, base), overload or "default"))
                )
    clear = torch.clear_autocast_cache

    @covers(torch, "clear_autocast_cache")
    def clear_autocast_cache() -> None:
        casts.cache.clear()
        clear()


class _Casts:
    """Casts of arguments; `cache` keeps parameters in the lower precision until the outermost autocast
    context ends."""

    def __init__(self, torch: Any) -> None:
        from torch.utils import _pytree

        self._torch, self._tree = torch, _pytree
        self._key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
        self.cache: dict[int, tuple[Any, Any]] = {}

    def around(self, name: str, operator: Any) -> Any:
        torch, lower, widest = self._torch, name in _LOWER, name in _WIDEST
        names = [argument.name for argument in operator._schema.arguments]
        at = names.index("dtype") if "dtype" in names else None
        fuses = {"softmax": torch.ops.aten._softmax, "log_softmax": torch.ops.aten._log_softmax}.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._key):
                if at is not None and not lower:
                    asked = (
                        args[at] if len(args) > at else kwargs.get("dtype")
                    )  # some versions pass it by position
                    if self._is_eligible(args[0]) and asked is None:
                        if fuses is not None and args[0].dtype == torch.float16:
                            return fuses(args[0], args[1], True)
                        if len(args) > at:
                            args = (*args[:at], torch.float32, *args[at + 1 :])
                        else:
                            kwargs = {**kwargs, "dtype": torch.float32}
                    return operator(*args, **kwargs)
                wanted = torch.get_autocast_dtype("cuda") if lower else torch.float32
                given = filter(self._is_eligible, self._tree.tree_leaves(args))
                if widest and not any(tensor.dtype == torch.float32 for tensor in given):
                    return operator(*args, **kwargs)
                return operator(*self._cast(args, wanted), **self._cast(kwargs, wanted))

        return call

    def _is_eligible(self, value: Any) -> bool:
        return on_device(value) and value.is_floating_point() and value.dtype != self._torch.float64

    def _cast(self, tree: Any, dtype: Any) -> Any:
        return self._tree.tree_map(lambda value: self._cast_one(value, dtype), tree)

    def _cast_one(self, value: Any, dtype: Any) -> Any:
        if not self._is_eligible(value) or value.dtype == dtype:
            return value
        is_weight = value.is_leaf and value.requires_grad and value.dtype == self._torch.float32
        if dtype == self._torch.float32 or not is_weight or not self._torch.is_autocast_cache_enabled():
            return value.to(dtype)
        if id(value) not in self.cache:
            self.cache[id(value)] = value, value.to(dtype)
        return self.cache[id(value)][1]
