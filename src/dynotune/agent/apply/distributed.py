"""Apply `ddp.…`: how DistributedDataParallel exchanges gradients, equally on every rank."""

from __future__ import annotations

from ..core.annotations import Answer, Any, BoundArguments, Event, Planned
from .site import Site, answer, cover_constructor, resolve

_HOOK = "comm_hook"
_MIB = 1024 * 1024


class DistributedSite(Site):
    """Cover DistributedDataParallel's constructor, and register a communication hook unless the program has its own."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._asked = {setting["site"]["argument"]: setting["value"] for setting in planned}
        self._found: dict[str, set[object]] = {}
        self._reason = ""
        self._kind: Any = None

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        self._kind = resolve(torch, self.setting["site"]["targets"][0])
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
        names = [getattr(hook, "__name__", "").replace("_compress_hook", "") for hook, _ in module._comm_hooks]
        self._found.setdefault(_HOOK, set()).add(names[0] if names else "none")

    def read(self, setting: Planned) -> Answer:
        found, asked = self._found.get(setting["site"]["argument"], set()), setting["value"]
        witness = "what DistributedDataParallel was built with"
        if not found:
            return answer(setting, None, witness, False, "the program built no DistributedDataParallel, or called none")
        other = next(iter(found - {asked}), asked)
        return answer(setting, other, witness, other == asked, self._reason)
