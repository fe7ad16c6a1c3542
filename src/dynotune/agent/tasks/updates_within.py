"""Compare updates of parameters with and without a candidate, while the program runs."""

from __future__ import annotations

import inspect
from collections import defaultdict

from ..core.device import free_memory, is_capturing
from ..core.errors import by_a_signal
from .digests import digests_of, fields_of, is_plain, plainly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.program import Program

    # An optimizer, and for each of its groups the options that the candidate changes, as the program had
    # them.
    OwnGroups = tuple[Any, list[dict[str, Any]]]

NAMES = ("baseline", "candidate", "reference", "rounded")
LEAST_PARAMETERS = 8
"""Parameters of an optimizer that are copied, if it has as many; one of each kind in any case."""
MOST_ELEMENTS = 65_536
"""Elements of a parameter that are copied: an update treats each alike."""
_SHORT = ("bfloat16", "float16")


class UpdatesWithin:
    """Digests of what a candidate's first updates make of parameters and of the optimizers' state, and of
    what the same updates would make without the candidate.

    Before an update, copies of some parameters are updated in the program's own way, and once more in
    float64. The program keeps the candidate's update. Nothing is told unless each optimizer that the
    candidate changes was compared: an update that is not of this form ends the comparison.

    `num_updates`: number of updates of each optimizer to compare.
    """

    def __init__(self, program: Program, num_updates: int) -> None:
        self._program, self._torch, self._num_updates = program, program.torch, num_updates
        # A step that the program compiles would take the hooks into its graphs.
        self._is_off = bool(program.compiles_itself)
        self._num_done: dict[int, int] = {}
        self._hooks: list[Any] = []
        self._begun: dict[int, _Update] = {}
        self._found: dict[str, list[Any]] = {name: [] for name in NAMES}
        self._precisions: set[str] = set()

    def watch(self, owned: list[OwnGroups]) -> None:
        """Compare the next updates of optimizers whose candidate is on, until `unwatch`."""
        for optimizer, own in owned:
            num_done = self._num_done.setdefault(id(optimizer), 0)
            if not hasattr(optimizer, "register_step_post_hook"):  # before torch 2.0
                self._is_off = True
            if not self._is_off and num_done < self._num_updates:
                before = optimizer.register_step_pre_hook(self._before(own))
                self._hooks += [before, optimizer.register_step_post_hook(self._after)]

    def unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._begun = [], {}

    def _before(self, own: list[dict[str, Any]]) -> Any:
        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._is_off or self._num_done[id(optimizer)] >= self._num_updates:
                return
            try:
                if self._cannot_look(optimizer, args, kwargs):
                    self._is_off = True
                elif update := self._begun_by(optimizer, own):
                    self._begun[id(optimizer)] = update
            except Exception as error:
                self._give_up(error)

        return hook

    def _cannot_look(self, optimizer: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether the step is captured or compiled, or computes its gradients in a closure. Torch gives
        the optimizer among the arguments."""
        torch = self._torch
        is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        given = [one for one in (*args, *kwargs.values()) if one is not None and one is not optimizer]
        return bool(given or is_capturing(torch) or is_compiling())

    def _begun_by(self, optimizer: Any, own: list[dict[str, Any]]) -> _Update | None:
        """Make the copies; None if the step will update nothing. Raises TypeError: a parameter is of a kind
        that cannot be copied."""
        found_inf = getattr(optimizer, "found_inf", None)
        picked = _picked(self._torch, optimizer)
        if not picked or (found_inf is not None and bool(found_inf)):
            return None
        with self._torch.no_grad(), plainly(self._torch):
            return _Update(self._torch, optimizer, own, picked)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        update = self._begun.pop(id(optimizer), None)
        if update is None:
            return
        try:
            with self._torch.no_grad(), plainly(self._torch):
                for name, values in zip(NAMES, update.values()):
                    self._found[name] += values
        except Exception as error:
            self._give_up(error)
        self._precisions |= update.precisions
        self._num_done[id(optimizer)] += 1

    def _give_up(self, error: Exception) -> None:
        """Compare nothing more: an error here must not become the program's."""
        if by_a_signal(error):
            raise error
        free_memory(self._torch, error)
        self._is_off, self._begun = True, {}

    def read(self) -> dict[str, Any] | None:
        """Return the comparison's result as fields of an event; None if some optimizer was not compared, or
        nothing moved."""
        if self._is_off or not self._num_done or not all(self._num_done.values()):
            return None
        values = {name: [fields_of(one) for one in found] for name, found in self._found.items()}
        # The first digest is the parameter's change. One that did not move, as at a learning rate of 0, shows
        # nothing.
        moved = [
            at
            for at, both in enumerate(zip(values["baseline"], values["reference"]))
            if all(one[0]["root"] != 0 for one in both)
        ]
        if not moved:
            return None
        # The tolerance is that of the highest precision.
        precision = "float32" if "float32" in self._precisions else next(iter(self._precisions))
        return {
            **{name: [found[at] for at in moved] for name, found in values.items()},
            "precision": precision,
        }


class _Update:
    """One update of some parameters: as they were, and copies after the program's own update."""

    def __init__(
        self, torch: Any, optimizer: Any, own: list[dict[str, Any]], picked: list[tuple[int, Any]]
    ) -> None:
        self._torch, self._optimizer = torch, optimizer
        self._parameters = [parameter for _, parameter in picked]
        self._before = [_part(parameter).clone() for parameter in self._parameters]
        self._plain = _stepped(torch, optimizer, own, picked, None)
        self._exact = _stepped(torch, optimizer, own, picked, torch.float64)
        halves = {getattr(torch, name): name for name in _SHORT}
        self.precisions = {halves.get(one.dtype, "float32") for one in self._before}

    def values(self) -> Iterator[list[Any]]:
        """Yield, for each of NAMES, the digests of each parameter's change and state."""
        states = [self._optimizer.state.get(one, {}) for one in self._parameters]
        parts = [{name: _part(value, one) for name, value in state.items() if self._is_tensor(value)}
                 for one, state in zip(self._parameters, states)]  # fmt: skip
        mine = [(_part(one), state) for one, state in zip(self._parameters, parts)]
        rounded = [
            (new.to(old.dtype), {name: value.to(parts[at][name].dtype) if name in parts[at] else value
                                 for name, value in state.items()})
            for at, ((new, state), old) in enumerate(zip(self._exact, self._before))
        ]  # fmt: skip
        for after in (self._plain, mine, self._exact, rounded):
            yield [
                digests_of(
                    self._torch,
                    [new.double() - old.double(), *(state[name].double() for name in sorted(state))],
                )
                for (new, state), old in zip(after, self._before)
            ]

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)


def _picked(torch: Any, optimizer: Any) -> list[tuple[int, Any]]:
    """Return parameters that the step will update, each with its group's place: one of each group, type and
    device, and more, spread over all.

    Raises TypeError: one of them is of a kind that cannot be copied.
    """
    updated = [
        (at, parameter)
        for at, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    kinds: dict[Any, tuple[int, Any]] = {}
    for at, parameter in updated:
        is_usual = type(parameter) in (torch.Tensor, torch.nn.Parameter) and is_plain(torch, parameter)
        if not is_usual or not is_plain(torch, parameter.grad):
            raise TypeError("a parameter or its gradient is of another kind")
        kinds.setdefault((at, parameter.dtype, parameter.device), (at, parameter))
    num = min(len(updated), LEAST_PARAMETERS)
    spread = [updated[at * (len(updated) - 1) // max(1, num - 1)] for at in range(num)]
    return list({id(one[1]): one for one in (*kinds.values(), *spread)}.values())


def _part(tensor: Any, like: Any = None) -> Any:
    """Return the first rows of a parameter, or of a state that has the parameter's shape."""
    like = tensor if like is None else like
    tensor = tensor.detach()
    if not like.dim() or tensor.shape != like.shape or like.numel() <= MOST_ELEMENTS:
        return tensor
    return tensor.narrow(0, 0, max(1, MOST_ELEMENTS * like.shape[0] // like.numel()))


def _stepped(
    torch: Any, optimizer: Any, own: list[dict[str, Any]], picked: list[tuple[int, Any]], dtype: Any
) -> list[tuple[Any, dict[str, Any]]]:
    """Return copies of the picked parameters after the step that the program's own options make, each with
    the tensors of its state.

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
        copied = _part(parameter).to(dtype or parameter.dtype, copy=True).requires_grad_()
        grad = _part(parameter.grad, parameter).to(copied.dtype, copy=True)
        copied.grad = grad if scale is None else grad * scale.double().reciprocal().to(grad.dtype)
        group = shadow.param_groups[at]
        group["params"].append(copied)
        shadow.state[copied] = {
            name: _copied(torch, name, _part(value, parameter), copied, bool(group.get("fused")))
            if isinstance(value, torch.Tensor)
            else value
            for name, value in optimizer.state.get(parameter, {}).items()
        }
        copies.append(copied)
    # Hooks and counters around the step belong to the program's own.
    inspect.unwrap(type(optimizer).step)(shadow)
    return [
        (
            one.detach(),
            {name: value for name, value in shadow.state[one].items() if isinstance(value, torch.Tensor)},
        )
        for one in copies
    ]


def _copied(torch: Any, name: str, value: Any, parameter: Any, fused: bool) -> Any:
    """Return a copy of a parameter's state; only fused kernels keep the step's number on the device."""
    if name == "step":
        return value.to(parameter.device if fused else "cpu", copy=True)
    return value.to(parameter.dtype, copy=True)
