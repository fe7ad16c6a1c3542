"""Run operators on tensors of the simulated device without memory or computation, and all others normally.

A tensor on the device is a FakeTensor of torch: shape, type and strides without data. Python sees the device
`cuda:0`. torch's C++ sees `meta:0`, which nothing else uses and which needs no driver: autograd then runs the
backward pass in the calling thread. Dispatch uses the keys of CUDA, for autocast. Shapes that depend on
unknown values are refused.
"""

from __future__ import annotations

from ..core import source_location
from . import kernels
from .recorder import Recorder, on_device
from .values import MOST_KNOWN, Values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSIDE = "meta"
"""Type of the device that C++ sees, with the number 0."""


class Refused(RuntimeError):
    """Error: a result would depend on values that only a real device would compute."""


class PretendedDevice:
    """A GPU that runs `threads` threads at a time; allocations are recorded in `recorder`.

    Operators reach this object through a dispatch mode of torch, from `enter` on.
    """

    def __init__(self, torch: Any, recorder: Recorder, threads: int) -> None:
        from torch._subclasses import fake_tensor
        from torch.utils import _pytree

        # Otherwise torch would make a real device begin its work. The second name is that before 2.5.
        for name in ("init_gpu_context", "init_cuda_context"):
            setattr(fake_tensor, name, lambda device: None)
        fake_class = fake_tensor.FakeTensor
        fake_class.is_cuda = property(on_device)
        self._torch = torch
        self._recorder = recorder
        self._threads = threads
        self._fake_class = fake_class
        self._tree_map_only = _pytree.tree_map_only
        self._cuda = torch.device("cuda", 0)
        self._inside = torch.device(INSIDE, 0)
        self._ask_device = torch.ops.prim.device.default
        self._read_scalar = torch.ops.aten._local_scalar_dense.default
        self._unknown_size = fake_tensor.DynamicOutputShapeException
        self._needs_values = (
            fake_tensor.DynamicOutputShapeException,
            fake_tensor.DataDependentOutputException,
            fake_tensor.UnsupportedOperatorException,
            NotImplementedError,
        )
        self._values = Values(torch, fake_class, recorder)
        self._written_by: dict[Any, list[tuple[int, str]]] = {}
        self._fakes = _fakes_of(self, fake_tensor.FakeTensorMode)
        self._mode = _mode_of(self)

    def enter(self) -> None:
        """Receive all operators from now on, for the life of the process."""
        self._mode.__enter__()

    def on_host(self, tensor: Any) -> Any:
        """Return a tensor that was copied to the host, with its known values or with substitutes."""
        return self._values.on_host(tensor)

    def moved(self, parameter: Any, applied: Any) -> Any:
        """Return the parameter with the device and type of `applied`.

        It is the same object as before, because optimizers have that object.
        """
        if not (isinstance(parameter, self._fake_class) and isinstance(applied, self._fake_class)):
            is_parameter = isinstance(applied, self._torch.nn.Parameter)
            return applied if is_parameter else self._torch.nn.Parameter(applied)
        if applied is not parameter:
            parameter.data = applied
            parameter.fake_device = applied.fake_device
        return parameter

    def parameter(self, parameter: Any) -> Any:
        """Return the same parameter without data, on the host; the caller then moves it to the device."""
        made = parameter.__dict__.get("_dynotune_fake")
        if made is None:
            shape, strides = parameter.shape, parameter.stride()
            with self._fakes, self._torch.no_grad():
                made = self._torch.empty_strided(shape, strides, dtype=parameter.dtype, device="cpu")
            made = self._torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
            made.__dict__.update(parameter.__dict__)
            parameter._dynotune_fake = made
        return made

    # Operators

    def inner_device(self, func: Any, args: Any) -> Any:
        """Return the device that C++ code sees for a tensor; None if C++ code does not ask for the device."""
        if func is not self._ask_device or not on_device(args[0]):
            return None
        return self._torch.device("meta") if args[0].fake_mode.in_kernel_invocation else self._inside

    def placed(self, kwargs: Any) -> Any:
        """Return keyword arguments with the simulated device in place of the one that C++ code sees."""
        kwargs = kwargs or {}
        return {**kwargs, "device": self._cuda} if kwargs.get("device") == self._inside else kwargs

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator: on tensors of the simulated device without data, and on all others normally."""
        told = self.inner_device(func, args)
        if told is not None:
            return told
        kwargs = self.placed(kwargs)
        if self._torch.is_inference_mode_enabled():
            # Composite operators arrive here whole, with the device among the positional arguments.
            with self._mode:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        tensors = self._values.tensors((args, kwargs))
        given = [tensor for tensor in tensors if isinstance(tensor, self._fake_class)]
        device = kwargs.get("device")
        here = device is not None and device.type == "cuda"
        if not (given or here):
            return func(*args, **kwargs)
        if func is self._read_scalar:
            return self._values.read(args[0])
        targets = self._written(func, args, kwargs)
        if any(self._is_real(target) for target in targets):
            self._recorder.read()  # into host memory
            return _result_among(func, targets)
        from_device = any(on_device(tensor) for tensor in given)
        out = self._without_data(func, args, kwargs, targets)
        return self._noted(func, args, kwargs, out, from_device) if from_device or here else out

    def _is_real(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor) and not isinstance(value, self._fake_class)

    def _written(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments that the operator writes to."""
        if func not in self._written_by:
            self._written_by[func] = [
                (position, argument.name)
                for position, argument in enumerate(func._schema.arguments)
                if argument.alias_info and argument.alias_info.is_write
            ]
        written = self._written_by[func]
        return [args[position] if position < len(args) else kwargs.get(name) for position, name in written]

    def _without_data(self, func: Any, args: Any, kwargs: Any, targets: list[Any]) -> Any:
        """Return the operator's results without data, and keep their values if these are known.

        Raises Refused: the shape of a result depends on values that are not known.
        """
        values = self._values
        are_known = values.are_known(func, args, kwargs)
        found = None
        try:
            with self._fakes:
                out = func(*args, **kwargs)
        except self._needs_values as error:
            if are_known:
                found = values.computed(func, args, kwargs)
            if found is not None:
                out = self._tree_map_only(self._torch.Tensor, self._with_shape, found)
            elif targets and all(item.alias_info is not None for item in func._schema.returns):
                out = _result_among(func, targets)  # it only writes, so shapes stay the same
            else:
                raise self._refusal(func, error) from None
        else:
            if are_known and all(tensor.numel() <= MOST_KNOWN for tensor in values.tensors(out)):
                found = values.computed(func, args, kwargs)
        values.keep(func, args, targets, out, found)
        return out

    def _refusal(self, func: Any, error: Exception) -> Refused:
        unknown = isinstance(error, self._unknown_size)
        why = "gives a number of elements that device values decide" if unknown else "needs such values"
        place = source_location.place() or "?"
        return Refused(self._recorder.refuse("%s %s: %s" % (func, why, place)))

    def _with_shape(self, value: Any) -> Any:
        shape, strides = value.shape, value.stride()
        with self._fakes:
            return self._torch.empty_strided(shape, strides, dtype=value.dtype, device=self._cuda)

    def _noted(self, func: Any, args: Any, kwargs: Any, out: Any, from_device: bool) -> Any:
        """Note new allocations, and return a tensor that went to the host as a real tensor."""
        recorder = self._recorder
        name = func._schema.name
        made = [tensor for tensor in self._values.tensors(out) if on_device(tensor)]
        if name in kernels.MULTIPLIES:
            recorder.multiplies()
        elif name in kernels.CONVOLVES:
            recorder.facts["convolves"] = True
        for tensor in made:
            recorder.born(tensor)
        recorder.lends(kernels.buffers(func, args, kwargs, made, self._threads))
        if from_device and isinstance(out, self._fake_class) and out.fake_device.type == "cpu":
            return self._values.on_host(out)
        return out


def _fakes_of(device: PretendedDevice, base: Any) -> Any:
    """Return torch's mode of fake tensors, in which C++ code sees the simulated device as the inner one."""

    class Fakes(base):  # type: ignore[misc]
        avoid_device_init = True  # whatever torch.cuda reports, no real device exists

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inner = device.inner_device(func, args)
            return inner or super().__torch_dispatch__(func, types, args, device.placed(kwargs))

    return Fakes(allow_non_fake_inputs=True)


def _mode_of(device: PretendedDevice) -> Any:
    """Return the dispatch mode that passes operators to `device`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return device.dispatch(func, args, kwargs)

    return Mode()


def _result_among(func: Any, targets: list[Any]) -> Any:
    """Return the argument that an operator writes to and returns; None if it returns nothing."""
    return targets[0] if targets and func._schema.returns else None
