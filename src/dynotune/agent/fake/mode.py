"""Run operators on tensors of the simulated device without memory or computation, and all others normally.

A tensor on the device is a FakeTensor of torch: shape, type and strides without data. Python sees the device `cuda:0`.
torch's C++ sees `meta:0`, which nothing else uses and which needs no driver: autograd then runs the backward pass in
the calling thread. Dispatch uses the keys of CUDA, for autocast. Shapes that depend on unknown values are refused.
"""

from __future__ import annotations

from ..core import source_location
from ..core.annotations import Any
from . import kernels
from .recorder import Recorder, on_device

INSIDE = "meta"
"""Type of the device that C++ sees, with the number 0."""
MOST_KNOWN = 1 << 16
"""Largest number of elements of a tensor whose values are followed."""
MOST_COPIED_BYTES = 64 << 20
"""Larger copies to the host stay without data."""
# Operators whose output counts as unchanged while gradients are finite.
_KEEP_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Refused(RuntimeError):
    """Error: a result would depend on values that only a real device would compute."""


def make(torch: Any, recorder: Recorder, threads: int) -> Any:
    """Make the dispatch mode of a GPU that runs so many threads at a time; it records allocations in `recorder`."""
    from torch._subclasses import fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    # otherwise torch would make a real device begin its work: by this name since 2.5, and by another before
    for name in ("init_gpu_context", "init_cuda_context"):
        setattr(fake_tensor, name, lambda device: None)
    fake_class = fake_tensor.FakeTensor
    fake_class.is_cuda = property(on_device)
    cuda, inside = torch.device("cuda", 0), torch.device(INSIDE, 0)
    ask_device, read_scalar = torch.ops.prim.device.default, torch.ops.aten._local_scalar_dense.default
    needs_values = (
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.DataDependentOutputException,
        fake_tensor.UnsupportedOperatorException,
        NotImplementedError,
    )
    values = Values(torch, fake_class, recorder)
    written_by: dict[Any, list[tuple[int, str]]] = {}

    def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments that the operator writes to."""
        if func not in written_by:
            named = enumerate(func._schema.arguments)
            written_by[func] = [(at, one.name) for at, one in named if one.alias_info and one.alias_info.is_write]
        return [args[at] if at < len(args) else kwargs.get(name) for at, name in written_by[func]]

    def inner_device(func: Any, args: Any) -> Any:
        """Return the device that C++ code sees for a tensor; None if C++ code does not ask for the device."""
        if func is not ask_device or not on_device(args[0]):
            return None
        return torch.device("meta") if args[0].fake_mode.in_kernel_invocation else inside

    def placed(kwargs: Any) -> Any:
        """Return keyword arguments with the simulated device in place of the device that C++ code sees for it."""
        kwargs = kwargs or {}
        return {**kwargs, "device": cuda} if kwargs.get("device") == inside else kwargs

    class Fakes(fake_tensor.FakeTensorMode):  # type: ignore[misc]
        avoid_device_init = True  # whatever torch.cuda reports, no real device exists

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return inner_device(func, args) or super().__torch_dispatch__(func, types, args, placed(kwargs))

    fakes = Fakes(allow_non_fake_inputs=True)

    class PretendedDevice(TorchDispatchMode):  # type: ignore[misc]
        on_host = staticmethod(values.on_host)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (told := inner_device(func, args)) is not None:
                return told
            kwargs = placed(kwargs)
            if torch.is_inference_mode_enabled():
                # Composite operators arrive here whole, with the device among the positional arguments.
                with self:
                    if (found := func.decompose(*args, **kwargs)) is not NotImplemented:
                        return found
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            given = [one for one in values.tensors((args, kwargs)) if isinstance(one, fake_class)]
            device = kwargs.get("device")
            here = device is not None and device.type == "cuda"
            if not (given or here):
                return func(*args, **kwargs)
            if func is read_scalar:
                return values.read(args[0])
            targets = written(func, args, kwargs)
            only = targets[0] if targets and func._schema.returns else None
            if any(isinstance(one, torch.Tensor) and not isinstance(one, fake_class) for one in targets):
                recorder.read()  # into host memory
                return only
            from_device = any(on_device(tensor) for tensor in given)
            are_known, found = values.are_known(func, args, kwargs), None
            try:
                with fakes:
                    out = func(*args, **kwargs)
            except needs_values as error:
                if are_known and (found := values.computed(func, args, kwargs)) is not None:
                    out = tree_map_only(torch.Tensor, self._with_shape, found)
                elif targets and all(item.alias_info is not None for item in func._schema.returns):
                    out = only  # it only writes, so shapes stay the same
                else:
                    unknown = isinstance(error, fake_tensor.DynamicOutputShapeException)
                    why = "gives a number of elements that device values decide" if unknown else "needs such values"
                    place = source_location.place() or "?"
                    raise Refused(recorder.refuse("%s %s: %s" % (func, why, place))) from None
            else:
                if are_known and all(tensor.numel() <= MOST_KNOWN for tensor in values.tensors(out)):
                    found = values.computed(func, args, kwargs)
            values.keep(func, args, targets, out, found)
            return self._noted(func, args, kwargs, out, from_device) if from_device or here else out

        def _with_shape(self, value: Any) -> Any:
            with fakes:
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=cuda)

        def _noted(self, func: Any, args: Any, kwargs: Any, out: Any, from_device: bool) -> Any:
            """Note new allocations, and return a tensor that went to the host as a real tensor."""
            name, made = func._schema.name, [tensor for tensor in values.tensors(out) if on_device(tensor)]
            if name in kernels.MULTIPLIES:
                recorder.multiplies()
            elif name in kernels.CONVOLVES:
                recorder.facts["convolves"] = True
            for tensor in made:
                recorder.born(tensor)
            recorder.lends(kernels.buffers(func, args, kwargs, made, threads))
            if from_device and isinstance(out, fake_class) and out.fake_device.type == "cpu":
                return values.on_host(out)
            return out

        def moved(self, parameter: Any, applied: Any) -> Any:
            """Return the parameter with the device and type of `applied`, as the same object that optimizers have."""
            if not (isinstance(parameter, fake_class) and isinstance(applied, fake_class)):
                return applied if isinstance(applied, torch.nn.Parameter) else torch.nn.Parameter(applied)
            if applied is not parameter:
                parameter.data, parameter.fake_device = applied, applied.fake_device
            return parameter

        def parameter(self, parameter: Any) -> Any:
            """Return the same parameter without data, on the host; the caller then moves it to the device."""
            made = parameter.__dict__.get("_dynotune_fake")
            if made is None:
                with fakes, torch.no_grad():
                    made = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu")
                made = torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
                made.__dict__.update(parameter.__dict__)
                parameter._dynotune_fake = made
            return made

    return PretendedDevice()


class Values:
    """Known values of fake tensors: each is a host tensor, whose views correspond to the fake tensor's views."""

    def __init__(self, torch: Any, fake_class: Any, recorder: Recorder) -> None:
        from torch.utils import _pytree

        self._torch, self._fake_class, self._recorder, self._tree = torch, fake_class, recorder, _pytree

    def tensors(self, tree: Any) -> list[Any]:
        return [leaf for leaf in self._tree.tree_leaves(tree) if isinstance(leaf, self._torch.Tensor)]

    def known(self, tensor: Any) -> Any:
        """Return the values of a tensor without data; None if the values are unknown."""
        found = tensor.__dict__.get("_dynotune_known")
        return found if found is not None and (found.untyped_storage().nbytes() or not found.numel()) else None

    def are_known(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether the operator's results follow from known values."""
        given = self.tensors((args, kwargs))
        if self._torch.Tag.nondeterministic_seeded in func.tags or (not given and "empty" in func._schema.name):
            return False
        return all(
            self.known(one) is not None if isinstance(one, self._fake_class) else one.numel() <= MOST_KNOWN
            for one in given
        )

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator's results on the host; None if the host does not implement the operator."""

        def real(value: Any) -> Any:
            if isinstance(value, self._torch.device):
                return self._torch.device("cpu")
            return self.known(value) if isinstance(value, self._fake_class) else value

        try:
            found = func(*self._tree.tree_map(real, args), **self._tree.tree_map(real, kwargs))
            return () if found is None else found
        except RuntimeError:
            return None

    def keep(self, func: Any, args: Any, written: Any, out: Any, found: Any) -> None:
        """Keep the values computed for an operator's results; if None, forget the values of tensors it overwrote."""
        results = self.tensors(out)
        if found is not None:
            for tensor, value in zip(results, self.tensors(found)):
                tensor._dynotune_known = value
            return
        if func._schema.name not in _KEEP_VALUES:
            for tensor in self.tensors(written):
                if (value := self.known(tensor)) is not None:
                    value.untyped_storage().resize_(0)  # for all of its views, too
        if results and results[0].dtype == self._torch.bool:
            results[0]._dynotune_truth = self._truth(func, args)

    def read(self, tensor: Any) -> Any:
        """Return the number that the program reads from a tensor."""
        values = self.known(tensor)
        if values is not None:
            return values.item()
        self._recorder.read()
        return self._stand_in(tensor)

    def on_host(self, tensor: Any) -> Any:
        """Return a tensor that was copied to the host, with its known values or with substitutes."""
        values = self.known(tensor)
        if values is not None:
            return values.clone()
        if tensor.untyped_storage().nbytes() > MOST_COPIED_BYTES:
            return tensor
        self._recorder.read()
        made = self._torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.fill_(self._stand_in(tensor))

    def _truth(self, func: Any, args: Any) -> bool:
        """Return the operator's result for tensors of one element, which represents the result for all elements."""

        def one(value: Any) -> Any:
            is_tensor = isinstance(value, self._torch.Tensor)
            return self._torch.full([1] * value.dim(), self._stand_in(value)) if is_tensor else value

        try:
            return bool(func(*self._tree.tree_map(one, args)).flatten()[0])
        except Exception:  # a shape or an index that one element does not have
            return all(self._stand_in(value) for value in self.tensors(args) if value.dtype == self._torch.bool)

    def _stand_in(self, tensor: Any) -> Any:
        values = self.known(tensor) if isinstance(tensor, self._fake_class) else tensor
        if values is not None and values.numel() == 1:
            return values.item()
        if tensor.dtype == self._torch.bool:
            return tensor.__dict__.get("_dynotune_truth", False)
        return 1.0 if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 0
