"""Compare updates of parameters with and without a candidate, while the program runs."""

from __future__ import annotations

import inspect
from collections import defaultdict

from ..core.device import free_memory
from ..core.errors import by_a_signal
from .digests import MOST_TENSORS, digests_of, fields_of, is_plain, plainly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

    # An optimizer, and for each of its groups the options that the candidate changes, as the program had
    # them.
    OwnGroups = tuple[Any, list[dict[str, Any]]]

NAMES = ("baseline", "candidate", "reference", "rounded")
_HALVES = ("bfloat16", "float16")


class UpdatesWithin:
    """Digests of how a candidate's first updates change parameters, and of what the same updates would do
    without the candidate.

    Before an update, copies of some parameters are updated in the program's own way, and once more in
    float64. The program keeps the candidate's update. Of each optimizer as many parameters are copied as
    digests have tensors: kernels treat all of a group alike.

    `num_updates`: number of updates of each optimizer to compare.
    """

    def __init__(self, program: Program, num_updates: int) -> None:
        self._torch, self._num_updates = program.torch, num_updates
        # A step that the program compiles would take the hooks into its graphs.
        self._is_off = bool(program.compiles_itself)
        self._num_done: dict[int, int] = defaultdict(int)
        self._hooks: list[Any] = []
        self._begun: dict[int, list[tuple[Any, Any]]] = {}
        self._found: dict[str, list[Any]] = {name: [] for name in NAMES}
        self._precision = ""

    def watch(self, owned: list[OwnGroups]) -> None:
        """Compare the next updates of optimizers whose candidate is on, until `unwatch`."""
        for optimizer, own in owned:
            left = self._num_updates - self._num_done[id(optimizer)]
            if self._is_off or left <= 0 or not hasattr(optimizer, "register_step_post_hook"):
                continue
            before = self._before(own)
            self._hooks += [
                optimizer.register_step_pre_hook(before),
                optimizer.register_step_post_hook(self._after),
            ]

    def unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._begun = [], {}

    def _before(self, own: list[dict[str, Any]]) -> Any:
        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            # A closure computes the gradients within the step. Torch gives the optimizer among the arguments.
            has_closure = bool(kwargs) or any(given is not optimizer for given in args)
            if self._is_off or has_closure or self._num_done[id(optimizer)] >= self._num_updates:
                return
            try:
                self._begin(optimizer, own)
            except Exception as error:
                self._give_up(error)

        return hook

    def _begin(self, optimizer: Any, own: list[dict[str, Any]]) -> None:
        torch = self._torch
        found_inf = getattr(optimizer, "found_inf", None)
        picked = _picked(torch, optimizer)
        if not picked or (found_inf is not None and bool(found_inf)):
            return
        with torch.no_grad(), plainly(torch):
            before = [parameter.detach().clone() for _, parameter in picked]
            plain = _stepped(torch, optimizer, own, picked, None)
            exact = _stepped(torch, optimizer, own, picked, torch.float64)
            for name, after in (
                ("baseline", plain),
                ("reference", exact),
                ("rounded", [one.to(old.dtype) for one, old in zip(exact, before)]),
            ):
                self._note(name, after, before)
        self._precision = next(
            (half for half in _HALVES if before[0].dtype is getattr(torch, half)), "float32"
        )
        self._begun[id(optimizer)] = [(parameter, old) for (_, parameter), old in zip(picked, before)]

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        begun = self._begun.pop(id(optimizer), None)
        if begun is None:
            return
        try:
            self._note("candidate", [parameter.detach() for parameter, _ in begun], [old for _, old in begun])
        except Exception as error:
            self._give_up(error)
        self._num_done[id(optimizer)] += 1

    def _note(self, name: str, after: list[Any], before: list[Any]) -> None:
        """Digest each parameter's change as a value of its own."""
        torch = self._torch
        for new, old in zip(after, before):
            self._found[name].append(digests_of(torch, new.double() - old.double()))

    def _give_up(self, error: Exception) -> None:
        """Compare nothing more: an error here must not become the program's."""
        if by_a_signal(error):
            raise error
        free_memory(self._torch, error)
        self._is_off, self._begun = True, {}

    def read(self) -> dict[str, Any] | None:
        """Return the comparison's result as fields of an event; None if no update could be compared."""
        if self._is_off or not self._found["candidate"]:
            return None
        whole = len(self._found["candidate"])
        fields = {name: [fields_of(one) for one in found[:whole]] for name, found in self._found.items()}
        return {**fields, "precision": self._precision}


def _picked(torch: Any, optimizer: Any) -> list[tuple[int, Any]]:
    """Return parameters that the step will update, spread over all of them, each with its group's place."""
    found = [
        (at, parameter)
        for at, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if type(parameter) in (torch.Tensor, torch.nn.Parameter)
        and parameter.grad is not None
        and is_plain(torch, parameter)
        and is_plain(torch, parameter.grad)
    ]
    num = min(len(found), MOST_TENSORS)
    return [found[at * (len(found) - 1) // max(1, num - 1)] for at in range(num)]


def _stepped(
    torch: Any, optimizer: Any, own: list[dict[str, Any]], picked: list[tuple[int, Any]], dtype: Any
) -> list[Any]:
    """Return copies of the picked parameters after the step that the program's own options make.

    `dtype`: type that the copies are computed in; None: their own.
    """
    scale = getattr(optimizer, "grad_scale", None)
    shadow = object.__new__(type(optimizer))
    # A scaler divides the gradients itself where the optimizer does not.
    kept = {name: value for name, value in vars(optimizer).items() if name not in ("grad_scale", "found_inf")}
    vars(shadow).update(kept, state=defaultdict(dict))
    shadow.param_groups = [
        {**group, **options, "params": []} for group, options in zip(optimizer.param_groups, own)
    ]
    copies = []
    for at, parameter in picked:
        copied = parameter.detach().to(dtype or parameter.dtype, copy=True).requires_grad_()
        grad = parameter.grad.detach().to(copied.dtype, copy=True)
        copied.grad = grad if scale is None else grad * scale.double().reciprocal().to(grad.dtype)
        group = shadow.param_groups[at]
        group["params"].append(copied)
        shadow.state[copied] = {
            name: _copied(torch, name, value, copied, bool(group.get("fused")))
            for name, value in optimizer.state.get(parameter, {}).items()
        }
        copies.append(copied)
    # Hooks and counters around the step belong to the program's own.
    inspect.unwrap(type(optimizer).step)(shadow)
    return [one.detach() for one in copies]


def _copied(torch: Any, name: str, value: Any, parameter: Any, fused: bool) -> Any:
    """Return a copy of a parameter's state; only fused kernels keep the step's number on the device."""
    if not isinstance(value, torch.Tensor):
        return value
    if name == "step":
        return value.detach().to(parameter.device if fused else "cpu", copy=True)
    return value.detach().to(parameter.dtype, copy=True)
