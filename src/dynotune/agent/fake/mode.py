"""Runs operators of tensors on the pretended device without memory and without work, and all others as they are.

A tensor on the device is a FakeTensor of torch: shape, type and strides without data. Python is told that it is on
`cuda:0`; torch's C++ is told `meta:0`, which nobody else uses, and for which it needs no driver: autograd runs such a
backward pass in the thread that asks for it. Dispatch goes by the keys of CUDA, as for autocast.

Small values that the program brought there itself, such as token numbers, lengths and masks, are known, so they are
computed beside it; what depends on any other value is answered with a constant and noted, or refused where a shape
depends on it.
"""

from __future__ import annotations

import operator

from ..core import source_location
from . import kernels
from .recorder import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .recorder import Recorder

INSIDE = "meta"
"""Type of the device that C++ is told of, with the number 0."""
MOST_KNOWN = 1 << 16
"""Elements of a tensor whose values are followed."""
MOST_COPIED_BYTES = 64 << 20
"""Copies to the host that are larger stay without data."""
_COMPARISONS = {"aten::" + name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# Booleans that such results go through, as if there were one element.
_PASSES = "mul bitwise_and logical_and all any view clone _to_copy detach select squeeze"
_PASS = {"aten::" + name for name in _PASSES.split()}
_NEGATIONS = {"aten::logical_not", "aten::bitwise_not"}
# What they write is as good as unchanged while gradients are finite.
_KEEP_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Refused(RuntimeError):
    """Something that cannot be known without the values that the device would compute."""


def make(torch: Any, recorder: Recorder) -> Any:
    """The dispatch mode, to be entered. It notes in `recorder` what is allocated."""
    from torch._subclasses import fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    fake_class = fake_tensor.FakeTensor
    cuda, inside = torch.device("cuda", 0), torch.device(INSIDE, 0)
    ask_device = torch.ops.prim.device.default  # as C++ asks a FakeTensor
    fake_class.is_cuda = property(on_device)

    def inner_device(func: Any, args: Any) -> Any:
        """What C++ is told that asks for the device of a tensor on the pretended one; None where it asks nothing."""
        if func is not ask_device or not on_device(args[0]):
            return None
        return torch.device("meta") if args[0].fake_mode.in_kernel_invocation else inside

    def placed(kwargs: Any) -> Any:
        """The arguments, where C++ makes a tensor beside one of the device."""
        kwargs = kwargs or {}
        return {**kwargs, "device": cuda} if kwargs.get("device") == inside else kwargs

    class Fakes(fake_tensor.FakeTensorMode):  # type: ignore[misc]
        avoid_device_init = True  # whatever torch.cuda says, there is none

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return inner_device(func, args) or super().__torch_dispatch__(func, types, args, placed(kwargs))

    fakes = Fakes(allow_non_fake_inputs=True)
    needs_values = (
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.DataDependentOutputException,
        fake_tensor.UnsupportedOperatorException,
        NotImplementedError,
    )
    tensor_class, aten = torch.Tensor, torch.ops.aten
    read_scalar = aten._local_scalar_dense.default
    random = torch.Tag.nondeterministic_seeded
    writes: dict[Any, tuple[list[int], list[int], str, bool]] = {}

    def tensors(values: Any) -> Iterator[Any]:
        for value in values:
            if isinstance(value, tensor_class):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from tensors(value)

    def known(value: Any) -> Any:
        """The values of a tensor without data; None where nobody knows them."""
        found = value.__dict__.get("_dynotune_known")
        return found[0] if found is not None and found[1][0] else None

    def knows(values: Any) -> bool:
        return all(
            known(tensor) is not None if isinstance(tensor, fake_class) else tensor.numel() <= MOST_KNOWN
            for tensor in tensors(values)
        )

    def real(value: Any) -> Any:
        if isinstance(value, fake_class):
            return known(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return type(value)(real(inner) for inner in value)
        return value

    def with_values(values: Any) -> Any:
        """The same on the device, for results whose shape needed their values."""
        if isinstance(values, tensor_class):
            with fakes:
                made = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device=cuda)
            made._dynotune_known = values, [True]
            return made
        return type(values)(with_values(value) for value in values) if isinstance(values, (list, tuple)) else values

    def facts(func: Any) -> tuple[list[int], list[int], str, bool]:
        """Positions of arguments that it writes, and of those its results are views of; its name; whether it draws."""
        found = writes.get(func)
        if found is None:
            aliases = [argument.alias_info for argument in func._schema.arguments]
            written = [number for number, alias in enumerate(aliases) if alias is not None and alias.is_write]
            viewed = [number for number, alias in enumerate(aliases) if alias is not None and not alias.is_write]
            found = writes[func] = written, viewed, func._schema.name, random in func.tags
        return found

    def argument(func: Any, number: int, args: Any, kwargs: Any) -> Any:
        return args[number] if number < len(args) else kwargs.get(func._schema.arguments[number].name)

    class PretendedDevice(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (device := inner_device(func, args)) is not None:
                return device
            kwargs = placed(kwargs)
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            given = [tensor for tensor in tensors((*args, *kwargs.values())) if isinstance(tensor, fake_class)]
            device = kwargs.get("device")
            here = device is not None and device.type == "cuda"
            if not (given or here):
                return func(*args, **kwargs)
            if func is read_scalar:
                return self._read(args[0])
            written, viewed, name, draws = facts(func)
            targets = [argument(func, number, args, kwargs) for number in written]
            if any(isinstance(target, tensor_class) and not isinstance(target, fake_class) for target in targets):
                recorder.read()  # into the host's memory
                return targets[0] if func._schema.returns else None
            from_device = any(on_device(tensor) for tensor in given)
            computable = (
                not draws and (bool(given) or not name.startswith("aten::empty")) and knows((*args, *kwargs.values()))
            )
            out = self._run(func, args, kwargs, targets, computable)
            self._follow(func, args, kwargs, out, computable, (written, viewed, name))
            if from_device or here:
                out = self._noted(name, args, out, from_device)
            return out

        def _run(self, func: Any, args: Any, kwargs: Any, targets: Any, computable: bool) -> Any:
            try:
                with fakes:
                    return func(*args, **kwargs)
            except needs_values as error:
                if computable:
                    return with_values(func(*real(args), **{name: real(value) for name, value in kwargs.items()}))
                if targets and all(item.alias_info is not None for item in func._schema.returns):
                    return targets[0] if func._schema.returns else None  # it only writes: shapes stay as they are
                unknown = isinstance(error, fake_tensor.DynamicOutputShapeException)
                why = "gives as many elements as values on the device say" if unknown else "needs values on the device"
                reason = "%s %s: %s" % (func, why, source_location.places() or "?")
            raise Refused(recorder.refuse(reason))

        def _follow(self, func: Any, args: Any, kwargs: Any, out: Any, computable: bool, facts: Any) -> None:
            """Compute small known values beside the operator, or forget those that are known no longer."""
            written, viewed, name = facts
            results = list(tensors((out,)))
            small = all(tensor.numel() <= MOST_KNOWN for tensor in results)
            if computable and small:
                if results and all("_dynotune_known" in tensor.__dict__ for tensor in results) and not written:
                    return
                try:
                    values = func(*real(args), **{name: real(value) for name, value in kwargs.items()})
                except RuntimeError:  # the CPU has no such operator
                    return
                cell = [True]
                for number in viewed:
                    base = argument(func, number, args, kwargs)
                    if isinstance(base, fake_class):
                        cell = base.__dict__["_dynotune_known"][1]
                for tensor, value in zip(results, tensors((values,))):
                    if not written:
                        tensor._dynotune_known = value, cell
                return
            if name not in _KEEP_VALUES:
                for tensor in tensors(argument(func, number, args, kwargs) for number in written):
                    found = tensor.__dict__.get("_dynotune_known")
                    if found is not None:
                        found[1][0] = False
            if results and results[0].dtype == torch.bool:
                results[0]._dynotune_truth = self._truth(name, args)

        def _truth(self, name: str, args: Any) -> bool:
            """What a comparison of tensors of nothing but ones would say."""
            compare = _COMPARISONS.get(name)
            if compare is not None:
                return bool(compare(*(self._stand_in(value) for value in args[:2])))
            if name in _NEGATIONS:
                return not self._stand_in(args[0])
            if name in _PASS:
                return all(bool(self._stand_in(value)) for value in tensors(args))
            return False

        def _stand_in(self, value: Any) -> Any:
            if not isinstance(value, tensor_class):
                return value
            values = known(value) if isinstance(value, fake_class) else value
            if values is not None and values.numel() == 1:
                return values.item()
            if value.dtype == torch.bool:
                return value.__dict__.get("_dynotune_truth", False)
            return 1.0 if value.dtype.is_floating_point or value.dtype.is_complex else 0

        def _read(self, tensor: Any) -> Any:
            values = known(tensor)
            if values is not None:
                return values.item()
            recorder.read()
            return self._stand_in(tensor)

        def _noted(self, name: str, args: Any, out: Any, from_device: bool) -> Any:
            """Note what was allocated; give what went to the host as a real tensor."""
            if name in kernels.MULTIPLIES:
                recorder.multiplies()
            elif name in kernels.CONVOLVES:
                recorder.facts["convolves"] = True
            for tensor in tensors((out,)):
                if on_device(tensor):
                    recorder.born(tensor)
            recorder.temporary(kernels.temporary_bytes(name, args))
            if from_device and isinstance(out, fake_class) and out.fake_device.type == "cpu":
                return self.on_host(out)
            return out

        def on_host(self, tensor: Any) -> Any:
            """A tensor that left the device, with values: known ones, else of ones that stand for them."""
            values = known(tensor)
            if values is not None:
                return values.clone()
            if tensor.untyped_storage().nbytes() > MOST_COPIED_BYTES:
                return tensor
            recorder.read()
            fill = self._stand_in(tensor)
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).fill_(fill)

        def moved(self, parameter: Any, applied: Any) -> Any:
            """The parameter, with the device and type of `applied`: still the one that optimizers have."""
            if not (isinstance(parameter, fake_class) and isinstance(applied, fake_class)):
                return applied if isinstance(applied, torch.nn.Parameter) else torch.nn.Parameter(applied)
            if applied is not parameter:
                parameter.data, parameter.fake_device = applied, applied.fake_device
            return parameter

        def parameter(self, parameter: Any) -> Any:
            """The same parameter without data, on the host: it is moved to the device next."""
            made = parameter.__dict__.get("_dynotune_fake")
            if made is None:
                with fakes, torch.no_grad():
                    made = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu")
                made = torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
                made.__dict__.update(parameter.__dict__)
                parameter._dynotune_fake = made
            return made

    return PretendedDevice()
