"""Find out what a forward pass does that limits how it can run: waits for the device, convolutions before
BatchNorm."""

import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CONVOLUTIONS: tuple[type[torch.nn.Module], ...] = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
BATCHNORMS: tuple[type[torch.nn.Module], ...] = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
)

# Their outputs' values or shapes are needed on the host.
_HOST_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_COPIES = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_TORCH_FOLDER = str(Path(torch.__file__).parent)


@dataclass(slots=True)
class Observation:
    """Operations of one forward pass that matter to a capture.

    Args:
        waits: operations that read the device's data on the host, with their places; none can be captured.
        uploads: copies from the host, with their places; they cannot be captured either, but compiling may
            remove them.
        pairs: names of convolutions and of the BatchNorm that always is the only reader of their output.
    """

    waits: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)


def observe(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Observation:
    """Run `model(*inputs)` once, without gradients, and return what it did.

    Keeps every convolution's output until the end, so use the smallest inputs. Run it after a first pass, so
    that one-time setup of the model is not recorded. On the CPU it reports what would wait on a GPU.
    """
    watch = _Watch(inputs[0].device.type)
    handles = []
    for name, module in model.named_modules():
        if type(module) in CONVOLUTIONS and _is_plain(module):
            handles.append(module.register_forward_hook(watch.convolved(name)))
        elif type(module) in BATCHNORMS and _is_plain(module):
            handles.append(module.register_forward_pre_hook(watch.normalising(name)))
            handles.append(module.register_forward_hook(watch.normalised))
    try:
        with torch.no_grad(), watch:
            outputs = model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return Observation(watch.waits, watch.uploads, watch.pairs(outputs))


def _is_plain(module: torch.nn.Module) -> bool:
    """Return whether the module computes exactly what its class defines: no hooks, no parametrization."""
    return not (module._forward_hooks or module._forward_pre_hooks or hasattr(module, "parametrizations"))


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator, and through hooks the module that calls it."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.waits: list[str] = []
        self.uploads: list[str] = []
        self._produced: dict[
            int, tuple[str, torch.Tensor]
        ] = {}  # id of a convolution's output -> name, the output
        self._outside: set[int] = set()  # read by something else than one BatchNorm
        self._convolved: dict[str, list[int]] = defaultdict(list)
        self._normalised: dict[str, list[int]] = defaultdict(list)
        self._inside: list[int] = []  # ids that the BatchNorm running now reads

    def convolved(self, name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            # Kept, so that no other tensor can get the same id.
            self._produced[id(output)] = (name, output)
            self._convolved[name].append(id(output))

        return hook

    def normalising(self, name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            read = id(inputs[0]) if inputs else 0
            if read in self._inside or any(read in seen for seen in self._normalised.values()):
                self._outside.add(read)
            self._normalised[name].append(read)
            self._inside.append(read)

        return hook

    def normalised(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        self._inside.pop()

    def pairs(self, outputs: Any) -> list[tuple[str, str]]:
        self._outside.update(id(leaf) for leaf in pytree.tree_leaves(outputs))
        found = []
        for norm, reads in self._normalised.items():
            sources = {self._produced[read][0] for read in reads if read in self._produced}
            if len(sources) != 1 or not all(read in self._produced for read in reads):
                continue
            (convolution,) = sources
            written = self._convolved[convolution]
            if sorted(written) == sorted(reads) and not self._outside.intersection(written):
                found.append((convolution, norm))
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        leaves = [leaf for leaf in pytree.tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        self._outside.update(
            id(leaf) for leaf in leaves if id(leaf) in self._produced and id(leaf) not in self._inside
        )
        result = func(*args, **named)
        # What only reads the host's own tensors waits for nobody.
        if any(
            leaf.device.type == self._device_type
            for leaf in [*leaves, result]
            if isinstance(leaf, torch.Tensor)
        ):
            self._note(func, args, named, leaves, result)
        return result

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        named: Mapping[str, Any],
        leaves: list[torch.Tensor],
        result: Any,
    ) -> None:
        name = func._schema.name
        if _is_read_by_host(func, args, named):
            self.waits.append(f"{name} at {_place()}")
        elif name in _COPIES:
            written = args[0] if name == "aten::copy_" else result
            if len({leaf.device.type for leaf in [*leaves, written]}) > 1:
                (self.waits if written.device.type == "cpu" else self.uploads).append(f"{name} at {_place()}")
        elif (
            name in _INDEXING
            and self._device_type != "cpu"
            and any(index is not None and index.device.type == "cpu" for index in args[1])
        ):
            self.uploads.append(f"{name} at {_place()}")  # of indices that lie on the host


def _is_read_by_host(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    name = func._schema.name
    if name in _INDEXING:
        return any(index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None)
    if name == "aten::repeat_interleave":
        return named.get("output_size") is None
    return bool(_HOST_TAGS.intersection(func.tags))


def _place() -> str:
    """Return the innermost source line outside of torch and this module."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_TORCH_FOLDER) and frame.filename != __file__:
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "an unknown place"
