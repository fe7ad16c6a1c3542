"""Apply `optimizer.fused`: the single-kernel implementation of Adam, AdamW, SGD and Adagrad."""

from __future__ import annotations

import weakref

from .site import Site, answer, cover_constructor, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from inspect import BoundArguments
    from typing import Any

    from ..core.annotations import Answer, Event, Planned

_GROUPS = "fused of the optimizers' parameter groups"


class OptimizerSite(Site):
    """Cover the optimizers' constructors; if torch would refuse the change, keep the program's own arguments."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._built: list[weakref.ref[Any]] = []
        self._found: set[bool] = set()
        self._reasons: list[str] = []

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        for target in self.setting["site"]["targets"]:
            cover_constructor(resolve(torch, target), self._rewrite, str, self._remember)

    def _rewrite(self, bound: BoundArguments) -> str:
        """Change the arguments of one optimizer's constructor, or return why the arguments cannot be changed."""
        arguments = bound.arguments
        if not self.value:
            # None rather than False: False would also turn off foreach, which torch uses by default on a GPU.
            if arguments.get("fused"):
                arguments["fused"] = None
            arguments["params"] = _as_the_optimizer(arguments["params"], lambda group: group.get("fused"))
            return ""
        if hasattr(arguments["params"], "__next__"):
            arguments["params"] = list(arguments["params"])
        reason = self._why_not(arguments)
        if not reason:
            arguments["fused"] = True
            if arguments.get("foreach"):
                arguments["foreach"] = None
            arguments["params"] = _as_the_optimizer(arguments["params"], lambda group: True)
        return reason

    def _why_not(self, arguments: dict[str, Any]) -> str:
        if arguments.get("differentiable"):
            return "the optimizer is differentiable, which excludes fused"
        devices = self.torch.utils._foreach_utils._get_fused_kernels_supported_devices()
        for parameter in _parameters(arguments["params"]):
            if not parameter.is_floating_point():
                return "a parameter is %s; fused takes floating point only" % parameter.dtype
            if parameter.device.type not in devices:
                return "a parameter is on %s, for which there is no fused kernel" % parameter.device
        return ""

    def _remember(self, optimizer: Any, reason: str) -> None:
        if reason and reason not in self._reasons:
            self._reasons.append(reason)
        self._built = [ref for ref in self._built if ref() is not None and ref() is not optimizer]
        self._built.append(weakref.ref(optimizer))
        self._look()

    def _look(self) -> None:
        """Record the settings of living optimizers; for deleted optimizers, keep the last recorded settings."""
        living = [optimizer for optimizer in (ref() for ref in self._built) if optimizer is not None]
        if living:
            groups = [group for optimizer in living for group in getattr(optimizer, "param_groups", ())]
            self._found = {bool(group.get("fused")) for group in groups}

    def on_root(self, module: Any) -> None:
        """Turn `fused` off again for optimizers with sparse gradients, which are known only from this call on."""
        if not self.value:
            return
        sparse = {
            id(part.weight)
            for part in module.modules()
            if getattr(part, "sparse", False) is True and getattr(part, "weight", None) is not None
        }
        for optimizer in filter(None, (ref() for ref in self._built)) if sparse else ():
            if any(id(p) in sparse for group in optimizer.param_groups for p in group["params"]):
                self._take_back(optimizer)
        self._look()

    def _take_back(self, optimizer: Any) -> None:
        for options in (optimizer.defaults, *optimizer.param_groups):
            options["fused"] = None
        # GradScaler leaves unscaling to an optimizer that declares to do it itself.
        optimizer._step_supports_amp_scaling = False
        self._reasons.append("an embedding gives sparse gradients, which fused kernels do not take")

    def read(self, setting: Planned) -> Answer:
        self._look()
        found = set(self._found)
        if not found:
            names = ", ".join(target.rpartition(".")[2] for target in self.setting["site"]["targets"])
            detail = "the program built none of " + names
            return answer(setting, None, _GROUPS, False, detail)
        return fused_answer(setting, found, "; ".join(self._reasons))


def fused_answer(setting: Planned, found: set[bool], reason: str = "") -> Answer:
    """Build the read-back of `fused` as found in parameter groups. `reason`: why a group may differ."""
    others = found - {setting["value"]}
    if others and not reason:
        reason = "a parameter group that came later sets it for itself"
    value = next(iter(others or found), None)
    return answer(setting, value, _GROUPS, found == {setting["value"]}, reason)


def _as_the_optimizer(params: Any, is_changed: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the parameter groups that choose no implementation themselves, without changing the program's dicts."""
    if not isinstance(params, (list, tuple)):
        return params
    return [
        {name: value for name, value in group.items() if name not in ("fused", "foreach")}
        if isinstance(group, dict) and is_changed(group)
        else group
        for group in params
    ]


def _parameters(params: Any) -> Iterator[Any]:
    """Yield the tensors in an optimizer's argument: tensors, (name, tensor) pairs, or groups of tensors or pairs."""
    for item in [params] if hasattr(params, "is_floating_point") else params:
        if isinstance(item, dict):
            if hasattr(item["params"], "__next__"):
                item["params"] = list(item["params"])
            yield from _parameters(item["params"])
        else:
            yield item[1] if isinstance(item, tuple) else item
