"""Apply `ddp.…`, equally on every rank: how DistributedDataParallel exchanges gradients."""

from __future__ import annotations

from .site import cover_constructor, resolve
from .wrapper import WrapperSite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import BoundArguments
    from typing import Any

_HOOK = "comm_hook"
_MIB = 1024 * 1024


class DistributedSite(WrapperSite):
    """Cover DistributedDataParallel's constructor, and register a communication hook unless the program has
    its own."""

    WITNESS = "what DistributedDataParallel was built with"
    NONE = "the program built no DistributedDataParallel, or called none"
    _kind: Any = None

    def constructing(self) -> None:
        self._kind = resolve(self.torch, self.setting["site"]["targets"][0])
        cover_constructor(self._kind, self._rewrite, str, self._built)

    def _rewrite(self, bound: BoundArguments) -> str:
        bound.arguments.update({name: value for name, value in self._asked.items() if name != _HOOK})
        return ""

    def _built(self, wrapper: Any, reason: str) -> None:
        self._reason = self._reason or reason
        for name in self._asked:
            if name != _HOOK:
                found = wrapper.bucket_bytes_cap / _MIB if name == "bucket_cap_mb" else getattr(wrapper, name)
                self._found.setdefault(name, set()).add(found)

    def on_root(self, module: Any) -> None:
        name = self._asked.get(_HOOK)
        if name is None or not isinstance(module, self._kind):
            return
        if module._comm_hooks:
            self._reason = "the program has registered a hook of its own"
        elif name != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            module.register_comm_hook(None, getattr(default_hooks, name + "_compress_hook"))
        names = [
            getattr(hook, "__name__", "").replace("_compress_hook", "") for hook, _ in module._comm_hooks
        ]
        self._found.setdefault(_HOOK, set()).add(names[0] if names else "none")
