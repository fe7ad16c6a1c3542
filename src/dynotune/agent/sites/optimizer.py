"""Apply `optimizer.fused`: the single-kernel implementation of Adam, AdamW, SGD and Adagrad."""

from __future__ import annotations

import inspect
import weakref
from functools import partial

from .site import NotSwitched, Site, answer, cover_constructor, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from inspect import BoundArguments
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

_GROUPS = "fused of the optimizers' parameter groups"
_SPARSE = "gradients are sparse, which fused kernels do not take"
_OWN = "the program's own"


class OptimizerSite(Site):
    """Change the arguments of optimizers that the program builds, or the groups of living optimizers.

    An optimizer whose change torch would refuse keeps the program's own arguments.
    """

    is_switched = True
    acts_in_updates = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._known: list[weakref.ref[Any]] = []
        self._own: list[tuple[Any, list[Any], Any]] = []
        """Within a run: each optimizer, its groups' own `fused`, and whether it unscales gradients itself."""
        self._found: set[bool] = set()
        self._reasons: list[str] = []
        self._theirs: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that the program itself built with `fused`."""

    def constructing(self) -> None:
        for target in self.setting["site"]["targets"]:
            kind = resolve(self.torch, target)
            cover_constructor(kind, partial(self._rewrite, kind), str, self._remember)

    def cannot(self) -> str:
        """At the start, each optimizer is asked about when it is built."""
        if self.at_start:
            return ""
        groups = [(type(one), group) for one in self._living() for group in one.param_groups]
        if not groups:
            return self._none_built
        if any(group.get("capturable") for _, group in groups):
            return "the optimizer is capturable, so its step counts cannot move to the host"
        return next(filter(None, (self._why_not(kind, group) for kind, group in groups)), "")

    def has_already(self) -> bool:
        groups = [group for optimizer in self._living() for group in optimizer.param_groups]
        return all(bool(group.get("fused")) == self.value for group in groups)

    def on(self) -> None:
        self._own = self._own or [
            (
                optimizer,
                [group.get("fused") for group in optimizer.param_groups],
                optimizer.__dict__.get("_step_supports_amp_scaling"),
            )
            for optimizer in self._living()
        ]
        for optimizer, _, _ in self._own:
            for group in optimizer.param_groups:
                group["fused"] = self.value or None
            optimizer._step_supports_amp_scaling = bool(self.value)
            self._move_counts(optimizer)

    def off(self) -> None:
        for optimizer, fused, unscales in self._own:
            for group, value in zip(optimizer.param_groups, fused):
                group["fused"] = value
            if unscales is None:
                optimizer.__dict__.pop("_step_supports_amp_scaling", None)
            else:
                optimizer._step_supports_amp_scaling = unscales
            self._move_counts(optimizer)

    def own_groups(self) -> list[tuple[Any, list[dict[str, Any]]]]:
        """Return the optimizers that are switched, and for each of their groups the program's own options;
        none if the program's own code is in one of them."""
        classes = [resolve(self.torch, target) for target in self.setting["site"]["targets"]]
        if any(type(optimizer) not in classes for optimizer, _, _ in self._own):
            return []
        return [(optimizer, [{"fused": one} for one in fused]) for optimizer, fused, _ in self._own]

    def check(self, is_on: bool) -> None:
        for optimizer, fused, _ in self._own:
            found = [group.get("fused") for group in optimizer.param_groups]
            if found != ([self.value or None] * len(found) if is_on else fused):
                raise NotSwitched("the program sets fused of its optimizer itself while it runs")

    def _living(self) -> list[Any]:
        if not self._known:
            classes = tuple(resolve(self.torch, target) for target in self.setting["site"]["targets"])
            optimizers = self.alive(self.torch.optim.Optimizer)
            self._known = [weakref.ref(each) for each in optimizers if isinstance(each, classes)]
        return [optimizer for optimizer in (ref() for ref in self._known) if optimizer is not None]

    def _move_counts(self, optimizer: Any) -> None:
        """Move step counts: a fused kernel keeps them on the parameter's device, other kernels on the
        host."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                step = optimizer.state.get(parameter, {}).get("step")
                if isinstance(step, self.torch.Tensor):
                    device = parameter.device if group["fused"] else "cpu"
                    optimizer.state[parameter]["step"] = step.to(device)

    @property
    def _none_built(self) -> str:
        names = ", ".join(target.rpartition(".")[2] for target in self.setting["site"]["targets"])
        return "the program built none of " + names

    def _rewrite(self, kind: Any, bound: BoundArguments) -> str:
        """Change the arguments of one optimizer's constructor, or return why the arguments cannot be
        changed."""
        arguments = bound.arguments
        if not self.value:
            # None rather than False: False would also turn off foreach, which torch uses by default on a GPU.
            if arguments.get("fused"):
                arguments["fused"] = None
            arguments["params"] = _as_the_optimizer(arguments["params"], lambda group: group.get("fused"))
            return ""
        if arguments.get("fused"):
            return _OWN
        if hasattr(arguments["params"], "__next__"):
            arguments["params"] = list(arguments["params"])
        if not (reason := self._why_not(kind, arguments)):
            arguments["fused"] = True
            if arguments.get("foreach"):
                arguments["foreach"] = None
            arguments["params"] = _as_the_optimizer(arguments["params"], lambda group: True)
        return reason

    def _why_not(self, kind: Any, options: dict[str, Any]) -> str:
        """Return why fused kernels cannot take the parameters; "" if they can.

        `kind`: class of the optimizer. `options`: arguments of its constructor, or a parameter group.
        """
        if not self.value:
            return ""
        if options.get("differentiable"):
            return "the optimizer is differentiable, which excludes fused"
        devices = set(self.torch.utils._foreach_utils._get_fused_kernels_supported_devices())
        if issubclass(kind, self.torch.optim.Adagrad) and not self._takes_cuda():
            devices.discard("cuda")
        for parameter in _parameters(options["params"]):
            if not parameter.is_floating_point():
                return "a parameter is %s; fused takes floating point only" % parameter.dtype
            if parameter.device.type not in devices:
                return "a parameter is on %s, for which %s has no fused kernel" % (
                    parameter.device,
                    kind.__name__,
                )
            if parameter.is_leaf and parameter.grad is not None and parameter.grad.is_sparse:
                return _SPARSE
        return ""

    def _takes_cuda(self) -> bool:
        """Tell whether torch has a fused Adagrad for CUDA, which only newer versions have: older ones refuse
        it in the optimizer's own code."""
        try:
            refuses = "cuda_unsupported" in inspect.getsource(self.torch.optim.Adagrad)
        except (OSError, TypeError):
            refuses = False
        return not refuses and self._has_kernel("_fused_adagrad_", "CUDA")

    def _has_kernel(self, operator: str, device: str) -> bool:
        has_kernel = getattr(self.torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
        try:
            return has_kernel is not None and bool(has_kernel("aten::" + operator, device))
        except RuntimeError:  # there is no such operator
            return False

    def _remember(self, optimizer: Any, reason: str) -> None:
        if reason == _OWN:
            self._theirs.add(optimizer)
            reason = ""
        if reason and reason not in self._reasons:
            self._reasons.append(reason)
        self._known = [ref for ref in self._known if ref() is not None and ref() is not optimizer]
        self._known.append(weakref.ref(optimizer))
        self._look()

    def _look(self) -> None:
        """Record the settings of living optimizers; for deleted optimizers, keep the last recorded
        settings."""
        if living := self._living():
            groups = [group for optimizer in living for group in getattr(optimizer, "param_groups", ())]
            self._found = {bool(group.get("fused")) for group in groups}

    def on_root(self, module: Any) -> None:
        """Turn `fused` off again for optimizers with sparse gradients, or whose parameters have moved to
        another device: both are known only from this call on."""
        if not self.value:
            return
        sparse = {
            id(part.weight)
            for part in module.modules()
            if getattr(part, "sparse", False) is True and getattr(part, "weight", None) is not None
        }
        for optimizer in filter(None, (ref() for ref in self._known)):
            if optimizer in self._theirs:
                continue
            groups = getattr(optimizer, "param_groups", ())
            reasons = [self._why_not(type(optimizer), group) for group in groups if group.get("fused")]
            if any(id(p) in sparse for group in groups for p in group["params"]):
                reasons.append(_SPARSE)
            if reason := next(filter(None, reasons), ""):
                self._take_back(optimizer, reason)
        self._look()

    def _take_back(self, optimizer: Any, reason: str) -> None:
        for options in (optimizer.defaults, *optimizer.param_groups):
            options["fused"] = None
        # GradScaler leaves unscaling to an optimizer that declares to do it itself.
        optimizer._step_supports_amp_scaling = False
        self._reasons.append(reason)

    def read_one(self, setting: Planned) -> Answer:
        self._look()
        if not self._found:
            return answer(setting, None, _GROUPS, False, self._none_built)
        others = self._found - {setting["value"]}
        reason = "; ".join(self._reasons)
        if others and not reason:
            reason = "a parameter group that came later sets it for itself"
        value = next(iter(others or self._found), None)
        return answer(setting, value, _GROUPS, not others, reason)


def _as_the_optimizer(params: Any, is_changed: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the parameter groups that choose no implementation themselves, without changing the program's
    dicts."""
    if not isinstance(params, (list, tuple)):
        return params
    return [
        {name: value for name, value in group.items() if name not in ("fused", "foreach")}
        if isinstance(group, dict) and is_changed(group)
        else group
        for group in params
    ]


def _parameters(params: Any) -> Iterator[Any]:
    """Yield the tensors in an optimizer's argument: tensors, (name, tensor) pairs, or groups of tensors or
    pairs."""
    for item in [params] if hasattr(params, "is_floating_point") else params:
        if isinstance(item, dict):
            if hasattr(item["params"], "__next__"):
                item["params"] = list(item["params"])
            yield from _parameters(item["params"])
        else:
            yield item[1] if isinstance(item, tuple) else item
