"""Apply `ddp.…` and `fsdp.…`, equally on every rank: how DistributedDataParallel exchanges gradients, and when modules
sharded by `fully_shard` gather and release their parameters.
"""

from __future__ import annotations

import sys

from .site import Site, answer, cover_constructor, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import BoundArguments
    from typing import Any

    from ..core.annotations import Answer, Event, Planned

_HOOK = "comm_hook"
_MIB = 1024 * 1024
_RESHARD, _PREFETCH = "reshard_after_forward", "prefetch"
_DIRECTIONS = ("forward", "backward")


class _WrapperSite(Site):
    """Compare the requested arguments with those that were found at the program's wrappers of its model."""

    WITNESS, NONE = "", ""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._asked = {setting["site"]["argument"]: setting["value"] for setting in planned}
        self._found: dict[str, set[object]] = {}
        self._reason = ""

    def read(self, setting: Planned) -> Answer:
        found, asked = self._found.get(setting["site"]["argument"], set()), setting["value"]
        if not found:
            return answer(setting, None, self.WITNESS, False, self.NONE)
        other = next(iter(found - {asked}), asked)
        return answer(setting, other, self.WITNESS, other == asked, self._reason)


class DistributedSite(_WrapperSite):
    """Cover DistributedDataParallel's constructor, and register a communication hook unless the program has its own."""

    WITNESS = "what DistributedDataParallel was built with"
    NONE = "the program built no DistributedDataParallel, or called none"
    _kind: Any = None

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


class ShardedSite(_WrapperSite):
    """Configure each sharded module before the first call of the module that contains all of them."""

    WITNESS = "the state of the modules that fully_shard sharded"
    NONE = "the program called no module that fully_shard sharded"

    def on_root(self, module: Any) -> None:
        fsdp = sys.modules.get("torch.distributed.fsdp")
        kind: Any = getattr(fsdp, "FSDPModule", ())
        seen: set[int] = set()
        for outermost in module.modules():
            if not isinstance(outermost, kind) or id(outermost) in seen:
                continue
            # A sharded model inside an unsharded module gathers its own parameters, at its first call.
            units = [one for one in outermost.modules() if isinstance(one, kind)]
            seen.update(map(id, units))
            state = outermost._get_fsdp_state()
            if not getattr(state, "_dynotune_asked", False):
                state._dynotune_asked = True  # the model may be called alone first, and inside another module later
                self._ask(outermost, [one for one in units if _groups(one)])

    def _ask(self, outermost: Any, units: list[Any]) -> None:
        """Apply the settings to one model's sharded modules; modules without own parameters have nothing to gather."""
        # The outermost module is needed again when the backward pass begins, so `fully_shard` keeps it gathered.
        inner = [one for one in units if one is not outermost] or units
        if _RESHARD in self._asked:
            for unit in inner:
                unit.set_reshard_after_forward(self._asked[_RESHARD], recurse=False)
            found = {group.post_forward_mesh_info is not None for unit in inner for group in _groups(unit)}
            self._found.setdefault(_RESHARD, set()).update(found)
        if inner and _PREFETCH in self._asked:
            self._found.setdefault(_PREFETCH, set()).add(self._prefetch(inner, self._asked[_PREFETCH]))

    def _prefetch(self, units: list[Any], most: int) -> int:
        """Let each module gather the next modules' parameters ahead, in the order of definition; return how many do."""
        if any(_ahead(unit, direction) for unit in units for direction in _DIRECTIONS):
            self._reason = "the program has chosen what to gather ahead itself"
        else:
            for direction, order in zip(_DIRECTIONS, (units, units[::-1])):
                for at, unit in enumerate(order):
                    getattr(unit, "set_modules_to_%s_prefetch" % direction)(order[at + 1 : at + 1 + most])
            if len(units) <= most:
                self._reason = "only %d modules are sharded within the outermost one" % len(units)
        return min(max(len(_ahead(unit, direction)) for unit in units) for direction in _DIRECTIONS)


def _groups(module: Any) -> list[Any]:
    """Return a module's groups of sharded parameters; before torch 2.12 a module has at most one group."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return list(groups) if groups is not None else [one for one in (state._fsdp_param_group,) if one is not None]


def _ahead(module: Any, direction: str) -> list[Any]:
    return list(getattr(module._get_fsdp_state(), "_states_to_%s_prefetch" % direction))
