"""Switch settings on and off while the program runs, and restore the program's own values.

Each switch handles the settings of one place. `on` and `off` are called between two steps. `off` restores the program's
values; both raise `NotSwitched` on failure. The catalogue of knobs states which knobs can be switched, and why others
cannot.
"""

from __future__ import annotations

import gc

from ..apply.compile import CALLS_OF_ROOTS, stance_answer, why_not
from ..apply.globals import witness_of, write
from ..apply.module import HAS_OPTIMIZER, AutocastSite, ChannelsLastSite, GradModeSite
from ..apply.optimizer import fused_answer
from ..apply.quantize import NO_LAYERS, TRAINS, QuantizeSite, exchange
from ..apply.site import Site, answer, resolve, text
from ..apply.transfer import TransferSite
from ..core import reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

# The older call also sets these attributes, and its own value alone could not restore them.
_SET_BESIDE = ("torch.backends.cuda.matmul.fp32_precision", "torch.backends.mkldnn.matmul.fp32_precision")


class NotSwitched(Exception):
    """Error: settings cannot be switched, or can no longer be switched; the message is the reason.

    `code`: code of a reason on which the parent acts; the message then has the words that its sentence needs.
    """

    code = ""


class HasAlready(NotSwitched):
    """Error: the program has these settings already, so there is nothing to switch."""

    code = reasons.HAS_ALREADY


class Switch:
    """Switch for the settings of one place.

    `planned`: dicts with the fields of `schema.task.PlannedSetting`. `program`: the owner of the objects.
    """

    site: Site | None = None
    """Site through which calls of outermost modules go while the switch is on; None if calls do not change."""
    acts_in_calls = False
    """Whether calls of outermost modules run differently while the switch is on, and may fail."""
    compiles = False
    """Whether the first steps after switching on compile."""
    suits_ranks = True
    """Whether ranks that share a model can switch at the same step."""
    suits_short_epochs = True
    """Whether its effect costs no more when an epoch begins."""
    num_queued = 0
    """Largest number of ready batches from before the last switch."""
    num_workers = 0
    """Number of workers of each loader while the switch is on; 0 if the switch does not set it."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        self.planned, self.program, self.torch = planned, program, program.torch

    @property
    def value(self) -> Any:
        return self.planned[0]["value"]

    def on(self) -> None:
        """Switch on. Raises NotSwitched: the settings had no effect, or the program changed a value itself."""

    def off(self) -> None:
        """Restore the program's values. Raises NotSwitched: the program's values cannot be restored."""

    def check(self, is_on: bool) -> None:
        """Raise NotSwitched if the present value is neither the switch's value nor the program's own value."""

    def answers(self) -> list[Answer]:
        """Return the read-back of all settings, while the switch is on."""
        return [self.read(setting) for setting in self.planned]

    def read(self, setting: Planned) -> Answer:
        """Read one setting from the living objects on which it acts; every switch says how."""
        raise NotImplementedError


class CallSwitch(Switch):
    """Switch for settings that a site applies to calls of outermost modules, and reads back."""

    acts_in_calls = True
    site: Site

    def read(self, setting: Planned) -> Answer:
        return self.site.read(setting)


class GlobalSwitch(Switch):
    """Values for the whole process: attributes of modules, and setters with their getters."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self._before: list[Any] | None = None
        self._undo: list[Callable[[], None]] = []

    def on(self) -> None:
        if self._before is None:
            self._before = [self._read(setting) for setting in self.planned]
            if self._before == self._values:
                raise HasAlready
        self.check(False)
        self._undo = [_undo(self.torch, setting["site"], self._read(setting)) for setting in self.planned]
        for setting in self.planned:
            try:
                write(self.torch, setting["site"], setting["value"])
            except Exception as error:
                raise NotSwitched("torch refuses %s: %s" % (setting["knob"], error)) from error

    def off(self) -> None:
        changed = ""
        for setting, undo, before in zip(self.planned, self._undo, self._before or ()):
            found = self._read(setting)
            if found == setting["value"]:
                undo()
            elif found != before:
                changed = _changed(setting, found)
        if changed:
            raise NotSwitched(changed)

    def check(self, is_on: bool) -> None:
        for setting, asked in zip(self.planned, self._values if is_on else self._before or ()):
            found = self._read(setting)
            if found != asked:
                raise NotSwitched(_changed(setting, found))

    def read(self, setting: Planned) -> Answer:
        found = self._read(setting)
        return answer(setting, found, witness_of(setting["site"]), found == setting["value"])

    @property
    def _values(self) -> list[Any]:
        return [setting["value"] for setting in self.planned]

    def _read(self, setting: Planned) -> Any:
        """Read the value by the getter only: a value of torch's newer attribute could not be restored."""
        site = setting["site"]
        try:
            return resolve(self.torch, site["path"]) if site["type"] == "attr" else resolve(self.torch, site["get"])()
        except Exception as error:
            raise NotSwitched("%s cannot be read: %s" % (setting["knob"], error)) from error


class AutocastSwitch(CallSwitch):
    """Autocast around calls of outermost modules. A GradScaler has separate scales with and without autocast."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self.site = self._autocast = AutocastSite(planned, program.event)
        self.site.after_torch(self.torch)
        self._scalers: list[Any] = []
        self._states: dict[bool, list[Any]] = {}
        self._is_on = False

    def on(self) -> None:
        if not self._scalers:
            self._scalers = list(_alive(self.torch.amp.GradScaler))
            self._autocast.watch(self._scalers)
        self._exchange(True)

    def off(self) -> None:
        self._exchange(False)

    def _exchange(self, is_on: bool) -> None:
        self._states[self._is_on] = [scaler.state_dict() for scaler in self._scalers]
        self._is_on = is_on
        for scaler, state in zip(self._scalers, self._states.get(is_on, ())):
            if state:
                scaler.load_state_dict(state)


class ChannelsLastSwitch(CallSwitch):
    """The layout of 4-D weights, of the optimizer's state for them, and of the inputs."""

    suits_ranks = False  # gradient buckets are views in the original layout of the weights

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self.site = self._layout = ChannelsLastSite(planned, program.event)
        self.site.after_torch(self.torch)
        self._before: list[tuple[Any, Any]] = []

    def on(self) -> None:
        torch = self.torch
        wanted = torch.channels_last if self.value else torch.contiguous_format
        tensors = [weight for root in self.program.roots.alive() for weight in root.parameters() if weight.dim() == 4]
        if not tensors:
            raise NotSwitched("no outermost module has a 4-D weight")
        if all(weight.is_contiguous(memory_format=wanted) for weight in tensors):
            raise HasAlready
        layouts = {True: torch.contiguous_format, False: torch.channels_last}
        self._before = [(weight, layouts[weight.is_contiguous()]) for weight in tensors]
        for weight in tensors:
            self._convert(weight, wanted)
        self._layout.watch(tensors)

    def off(self) -> None:
        for weight, layout in self._before:
            self._convert(weight, layout)
        self._before = []

    def _convert(self, weight: Any, wanted: Any) -> None:
        with self.torch.inference_mode(False), self.torch.no_grad():
            weight.data = weight.data.contiguous(memory_format=wanted)
            if weight.grad is not None:
                weight.grad = weight.grad.contiguous(memory_format=wanted)
            for optimizer in self._optimizers():
                state = optimizer.state.get(weight, {})
                for name, value in list(state.items()):
                    if isinstance(value, self.torch.Tensor) and value.shape == weight.shape:
                        state[name] = value.contiguous(memory_format=wanted)

    def _optimizers(self) -> list[Any]:
        if not hasattr(self, "_known_optimizers"):
            self._known_optimizers = list(_alive(self.torch.optim.Optimizer))
        return self._known_optimizers


class GradModeSwitch(CallSwitch):
    """Calls of outermost modules without gradients."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self.site = GradModeSite(planned, program.event)
        self.site.after_torch(self.torch)

    def on(self) -> None:
        if self.program.steps.optimizers:
            raise NotSwitched(HAS_OPTIMIZER)


class QuantizeSwitch(Switch):
    """Quantized weights of outermost modules, kept beside the program's own."""

    acts_in_calls = True

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self._quantize = QuantizeSite(planned, program.event)
        self._quantize.after_torch(self.torch)
        self._own: list[tuple[Any, Any]] = []
        self._quantized: list[tuple[Any, Any]] = []

    def on(self) -> None:
        if self.program.steps.optimizers:
            raise NotSwitched(TRAINS)
        if not self._own:
            try:
                for root in self.program.roots.alive():
                    self._own += self._quantize.quantized(root)
            except Exception as error:
                exchange(self._own)
                self._own = []
                raise NotSwitched(str(error)) from error
            if not self._own:
                raise NotSwitched(NO_LAYERS)
            self._quantized = [(layer, layer.weight) for layer, _ in self._own]
        exchange(self._quantized)

    def off(self) -> None:
        exchange(self._own)

    def read(self, setting: Planned) -> Answer:
        is_on = bool(self._quantized) and all(layer.weight is weight for layer, weight in self._quantized)
        found, detail = setting["value"], ""
        if not is_on:
            found, detail = None, "a layer has another weight than its quantized one"
        return answer(setting, found, "weights of the quantized layers", is_on, detail)


class CompileSwitch(Switch):
    """The compiled call of outermost modules; `off` makes a program that compiles itself run eagerly."""

    acts_in_calls = True
    suits_ranks = False  # ranks finish compiling at different steps

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self.compiles = self.value != "off"
        self._compiled: list[tuple[Any, Any]] = []

    def on(self) -> None:
        if self.value == "off":
            self._set_stance("force_eager")
            return
        if not self._compiled:
            self._compiled = [(root, self._compile(root)) for root in self._roots()]
        for root, compiled in self._compiled:
            root._compiled_call_impl = compiled

    def off(self) -> None:
        if self.value == "off":
            self._set_stance("default")
            return
        for root, compiled in self._compiled:
            if root._compiled_call_impl is compiled:
                root._compiled_call_impl = None

    def read(self, setting: Planned) -> Answer:
        if self.value == "off":
            return stance_answer(setting)
        own_calls = [root._compiled_call_impl is call for root, call in self._compiled]
        is_on = bool(own_calls) and all(own_calls)
        return answer(setting, self.value if is_on else "off", CALLS_OF_ROOTS, is_on)

    def _roots(self) -> list[Any]:
        found = list(self.program.roots.alive())
        for root in found:
            if reason := why_not(self.torch, root):
                raise NotSwitched(reason)
        if not found:
            raise NotSwitched("no outermost module is called")
        return found

    def _compile(self, root: Any) -> Any:
        self.torch.nn.Module.compile(root, mode=self.value)
        compiled, root._compiled_call_impl = root._compiled_call_impl, None
        return compiled

    def _set_stance(self, stance: str) -> None:
        if not hasattr(self.torch.compiler, "set_stance"):
            raise NotSwitched("this version of torch has no stances of its compiler")
        if not self.program.num_compilations:
            raise NotSwitched("the program compiles nothing")
        self.torch.compiler.set_stance(stance)


class FusedSwitch(Switch):
    """`fused` of living optimizers; the device of their step counts changes with it."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self._before: list[tuple[Any, list[Any], Any]] | None = None

    def on(self) -> None:
        if self._before is None:
            optimizers = self._optimizers()
            has = [bool(group.get("fused")) for optimizer in optimizers for group in optimizer.param_groups]
            if all(each == self.value for each in has):
                raise HasAlready
            fused = [[group.get("fused") for group in each.param_groups] for each in optimizers]
            scales = [each.__dict__.get("_step_supports_amp_scaling") for each in optimizers]
            self._before = list(zip(optimizers, fused, scales))
        for optimizer, _, _ in self._before:
            for group in optimizer.param_groups:
                group["fused"] = self.value or None
            optimizer._step_supports_amp_scaling = bool(self.value)
            self._move_counts(optimizer)

    def off(self) -> None:
        for optimizer, fused, scales in self._before or ():
            for group, value in zip(optimizer.param_groups, fused):
                group["fused"] = value
            if scales is None:
                optimizer.__dict__.pop("_step_supports_amp_scaling", None)
            else:
                optimizer._step_supports_amp_scaling = scales
            self._move_counts(optimizer)

    def check(self, is_on: bool) -> None:
        for optimizer, fused, _ in self._before or ():
            found = [group.get("fused") for group in optimizer.param_groups]
            if found != ([self.value or None] * len(found) if is_on else fused):
                raise NotSwitched("the program sets fused of its optimizer itself while it runs")

    def read(self, setting: Planned) -> Answer:
        groups = [group for optimizer, _, _ in self._before or () for group in optimizer.param_groups]
        return fused_answer(setting, {bool(group.get("fused")) for group in groups})

    def _optimizers(self) -> list[Any]:
        classes = tuple(resolve(self.torch, target) for target in self.planned[0]["site"]["targets"])
        found = [each for each in _alive(self.torch.optim.Optimizer) if isinstance(each, classes)]
        if not found:
            names = ", ".join(target.rpartition(".")[2] for target in self.planned[0]["site"]["targets"])
            raise NotSwitched("the program has none of " + names)
        devices = self.torch.utils._foreach_utils._get_fused_kernels_supported_devices()
        for optimizer in found:
            for group in optimizer.param_groups:
                if group.get("differentiable") or group.get("capturable"):
                    raise NotSwitched("the optimizer is differentiable or capturable")
                for parameter in group["params"]:
                    if not parameter.is_floating_point() or parameter.device.type not in devices:
                        raise NotSwitched("a parameter is on %s, %s" % (parameter.device, parameter.dtype))
                    if parameter.grad is not None and parameter.grad.is_sparse:
                        raise NotSwitched("a gradient is sparse, which fused kernels do not take")
        return found

    def _move_counts(self, optimizer: Any) -> None:
        """Move step counts: a fused kernel keeps them on the parameter's device, other kernels on the host."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                step = optimizer.state.get(parameter, {}).get("step")
                if isinstance(step, self.torch.Tensor):
                    device = parameter.device if group["fused"] else "cpu"
                    optimizer.state[parameter]["step"] = step.to(device)


class TransferSwitch(Switch):
    """Switch for methods of `Tensor` that copy to the device: the methods are covered while the switch is on."""

    _NAMES = ("to", "cuda", "copy_")

    def __init__(self, planned: list[Planned], program: Program) -> None:
        super().__init__(planned, program)
        self._transfer = TransferSite(planned, program.event)
        self._own: dict[str, Any] = {}

    def on(self) -> None:
        tensor = self.torch.Tensor
        self._own = {name: tensor.__dict__.get(name) for name in self._NAMES}
        self._transfer.after_torch(self.torch)

    def off(self) -> None:
        tensor = self.torch.Tensor
        for name, own in self._own.items():
            if own is not None:
                setattr(tensor, name, own)
            elif name in tensor.__dict__:
                delattr(tensor, name)  # the method is inherited from the C class again
        self._own = {}

    def read(self, setting: Planned) -> Answer:
        return self._transfer.read(setting)


def _alive(of: type) -> Iterator[Any]:
    """Yield the program's objects of a class. The search for objects runs once, outside timed steps."""
    for found in gc.get_objects():
        try:
            if isinstance(found, of):
                yield found
        except Exception:  # a proxy whose __class__ raises
            continue


def _undo(torch: Any, site: dict[str, Any], value: Any) -> Callable[[], None]:
    """Restore `value`, and the attributes that the setter of `value` also sets."""
    setter = site.get("set")
    if setter == "torch.use_deterministic_algorithms":
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return lambda: torch.use_deterministic_algorithms(value, warn_only=warn_only)
    beside = []
    if setter == "torch.set_float32_matmul_precision":
        for path in _SET_BESIDE:
            try:
                beside.append(({"type": "attr", "path": path}, resolve(torch, path)))
            except AttributeError:
                continue  # torch before 2.9

    def undo() -> None:
        write(torch, site, value)
        for other, found in beside:
            write(torch, other, found)

    return undo


def _changed(setting: Planned, found: Any) -> str:
    return "the program sets %s itself while it runs, to %s" % (setting["knob"], text(found))
