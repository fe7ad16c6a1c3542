"""Apply `fsdp.…`, equally on every rank: when modules sharded by `fully_shard` gather and release
parameters."""

from __future__ import annotations

import sys

from .wrapper import WrapperSite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RESHARD, _PREFETCH = "reshard_after_forward", "prefetch"
_DIRECTIONS = ("forward", "backward")


class ShardedSite(WrapperSite):
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
                state._dynotune_asked = (
                    True  # the model may be called alone first, and inside another module later
                )
                self._ask(outermost, [one for one in units if _groups(one)])

    def _ask(self, outermost: Any, units: list[Any]) -> None:
        """Apply the settings to one model's sharded modules; modules without own parameters have nothing to
        gather."""
        # The outermost module is needed again when the backward pass begins, so `fully_shard` keeps it
        # gathered.
        inner = [one for one in units if one is not outermost] or units
        if _RESHARD in self._asked:
            for unit in inner:
                unit.set_reshard_after_forward(self._asked[_RESHARD], recurse=False)
            found = {group.post_forward_mesh_info is not None for unit in inner for group in _groups(unit)}
            self._found.setdefault(_RESHARD, set()).update(found)
        if inner and _PREFETCH in self._asked:
            self._found.setdefault(_PREFETCH, set()).add(self._prefetch(inner, self._asked[_PREFETCH]))

    def _prefetch(self, units: list[Any], most: int) -> int:
        """Let each module gather the next modules' parameters ahead, in the order of definition; return how
        many do."""
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
    return (
        list(groups) if groups is not None else [one for one in (state._fsdp_param_group,) if one is not None]
    )


def _ahead(module: Any, direction: str) -> list[Any]:
    return list(getattr(module._get_fsdp_state(), "_states_to_%s_prefetch" % direction))
