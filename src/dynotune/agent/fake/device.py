"""Make `torch.cuda` and related modules answer as on the requested GPU; calls that would need a driver do
nothing."""

from __future__ import annotations

import contextlib
import os
import re
from importlib import import_module
from types import FunctionType, SimpleNamespace

from ..core.covers import covers
from . import autocast, kernels, mode
from .recorder import Recorder, on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

# of a multiprocessor; else 2048
_MOST_THREADS = {(7, 5): 1024, **dict.fromkeys(((8, 6), (8, 7), (8, 9), (11, 0), (12, 0), (12, 1)), 1536)}


class Stream:
    """A CUDA stream or event: simulated work is finished at once, so that waiting for it returns at once."""

    stream_id = device_index = device_type = cuda_stream = priority = 0
    query, is_capturing, elapsed_time = (lambda *_: True), (lambda *_: False), lambda *_: 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self, *args: Any) -> Stream:
        return self

    __exit__ = wait = wait_event = wait_stream = synchronize = record = __init__
    record_event = __enter__


def pretend(torch: Any, gpu: dict[str, Any], program: Program) -> None:
    """Give the process a CUDA device without memory and computation; `program.pretended` records its
    allocations.

    Args:
        gpu: `name`, `total_bytes`, `compute_capability` as `[major, minor]`, `num_multiprocessors`.
    """
    capability = gpu["compute_capability"]
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    setting = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    recorder = Recorder(torch, program, kernels.workspace_bytes(setting, capability, version))  # type: ignore[arg-type]
    program.pretended = recorder
    threads = gpu["num_multiprocessors"] * _MOST_THREADS.get(tuple(capability), 2048)
    device = mode.PretendedDevice(torch, recorder, threads)
    _answer(torch, gpu, recorder)
    _refuse(torch, recorder)
    _move(torch)
    _show_values(torch, device)
    _choose(torch, recorder)
    _keep_parameters(torch, device, recorder)
    autocast.install(torch)
    device.enter()


def _answers(owner: Any, answers: dict[str, Any]) -> None:
    """Replace functions of a module by fixed answers; a callable answer replaces the function itself."""
    for name, answer in answers.items():
        put = answer if callable(answer) else lambda *args, _answer=answer, **kwargs: _answer
        setattr(owner, name, put)


def _answer(torch: Any, gpu: dict[str, Any], recorder: Recorder) -> None:
    """Answer questions about the simulated device and its allocator, and accept commands to the device."""
    cuda, total, device = torch.cuda, gpu["total_bytes"], torch.device("cuda")
    major, minor = gpu["compute_capability"]
    properties = SimpleNamespace(
        name=gpu["name"],
        major=major,
        minor=minor,
        total_memory=total,
        warp_size=32,
        multi_processor_count=gpu["num_multiprocessors"],
        is_integrated=0,
        is_multi_gpu_board=0,
        max_threads_per_multi_processor=_MOST_THREADS.get((major, minor), 2048),
        regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448,
        L2_cache_size=50 << 20,
        gcnArchName="",
    )
    for owner in (cuda, cuda.memory, cuda.random):
        # A function without an answer below is either a command, which then does nothing, or a question,
        # whose answer is no.
        unanswered = [name for name in owner.__all__ if isinstance(getattr(owner, name, 0), FunctionType)]
        _answers(owner, {name: False if name.startswith("is_") else None for name in unanswered})
    of_memory = {
        "memory_allocated": lambda *_, **__: recorder.live_bytes,
        "memory_reserved": lambda *_, **__: recorder.live_bytes,
        "max_memory_allocated": lambda *_, **__: recorder.peak_bytes,
        "max_memory_reserved": lambda *_, **__: recorder.peak_bytes,
        "mem_get_info": lambda *_, **__: (total - recorder.live_bytes, total),
        "memory_stats": recorder.stats,
        "memory_snapshot": recorder.segments,
        "_snapshot": recorder.snapshot,
        "empty_cache": recorder.empties_cache,
        "_record_memory_history": recorder.record,
        "set_per_process_memory_fraction": lambda fraction, *_, **__: setattr(
            recorder, "memory_fraction", fraction
        ),
        "get_per_process_memory_fraction": lambda *_, **__: recorder.memory_fraction,
        "get_allocator_backend": "native",
    }
    _answers(cuda.memory, of_memory)
    _answers(
        cuda,
        {
            **of_memory,
            "_lazy_init": None,
            "_is_in_bad_fork": False,
            "is_available": True,
            "is_initialized": True,
            "device_count": 1,
            "current_device": 0,
            "get_device_index": 0,
            "get_device_name": gpu["name"],
            "get_device_properties": properties,
            "get_device_capability": (major, minor),
            "get_arch_list": ["sm_%d%d" % (major, minor)],
            "is_bf16_supported": major >= 8,
            "is_tf32_supported": major >= 8,
            "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
            "get_rng_state_all": [],
            "current_stream": Stream(),
            "default_stream": Stream(),
            "Stream": Stream,
            "Event": Stream,
            "stream": Stream,
            "StreamContext": Stream,
            "device": contextlib.nullcontext,
            "device_of": contextlib.nullcontext,
        },
    )
    nothing: Any = lambda *_, **__: None  # noqa: E731
    cuda.nvtx = SimpleNamespace(
        range_push=nothing, range_pop=nothing, mark=nothing, range=contextlib.nullcontext
    )
    torch._C._cuda_isHistoryEnabled = lambda: recorder.is_recording
    torch._C._cuda_clearCublasWorkspaces = recorder.clear_workspaces
    if hasattr(torch, "accelerator"):
        _answers(torch.accelerator, {
            "is_available": True, "device_count": 1, "current_device_index": 0, "current_device_idx": 0,
            "current_accelerator": device, "current_stream": Stream(), "synchronize": None,
            "set_device_index": None, "set_device_idx": None, "set_stream": None,
            **{name: answer for name, answer in of_memory.items() if hasattr(torch.accelerator, name)},
        })  # fmt: skip
    torch.version.cuda = torch.version.cuda or "13.0"
    torch.backends.cuda.is_built = torch.backends.cudnn.is_available = lambda: True


def _refuse(torch: Any, recorder: Recorder) -> None:
    """Refuse features of the device that the simulation does not model."""

    def refusing(reason: str) -> Any:
        class Refusing:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                raise mode.Refused(recorder.refuse(reason))

        return Refusing

    torch.cuda.CUDAGraph = torch.cuda.graph = torch.cuda.make_graphed_callables = refusing(
        "it captures CUDA graphs, whose private pools are not modelled"
    )
    torch.cuda.memory.change_current_allocator = refusing("it uses an allocator of its own")
    if torch.distributed.is_available():
        torch.distributed.init_process_group = refusing(
            "it is distributed: only programs of one process are modelled"
        )


def _move(torch: Any) -> None:
    """Cover moves between host and device: for `cuda` without a number, C++ asks the driver for the
    device."""
    tensor, load, generator, plain = torch.Tensor, torch.load, torch.Generator, torch.Tensor.to
    cuda, inside = torch.device("cuda", 0), torch.device(mode.INSIDE, 0)

    @covers(tensor, "to")
    def to(
        self: Any, *args: Any, copy: bool = False, memory_format: Any = torch.preserve_format, **kwargs: Any
    ) -> Any:
        wanted, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        where = cuda if wanted is not None and (wanted.type == "cuda" or wanted == inside) else wanted
        stays = where is None or (where == cuda and on_device(self))
        to_where = () if stays else (where,)
        how = {"non_blocking": non_blocking, "copy": copy, "memory_format": layout or memory_format}
        return plain(self, *to_where, dtype or self.dtype, **how)

    def made(function: Any) -> Any:
        def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            where = torch.empty(0).device if device is None and not on_device(data) else device
            if where is None or torch.device(where).type != "cuda":
                return function(data, *args, device=where, **kwargs)
            wants_grad = kwargs.pop("requires_grad", False)
            own = {"device": "cpu"} if not on_device(data) else {}
            found = function(data, *args, **own, **kwargs).to(cuda)
            return found.requires_grad_() if wants_grad else found

        return made

    class Generator(generator):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu")

    tensor.cuda = lambda self, device=None, non_blocking=False, **kwargs: self.to(cuda, **kwargs)
    tensor.pin_memory = lambda self, *args, **kwargs: self
    tensor.is_pinned = lambda self, *args, **kwargs: False
    tensor.record_stream = lambda self, stream: None
    torch.tensor, torch.as_tensor, torch.Generator = made(torch.tensor), made(torch.as_tensor), Generator
    torch.load = lambda f, map_location=None, *args, **kwargs: load(f, "cpu", *args, **kwargs)


def _show_values(torch: Any, device: Any) -> None:
    """Cover methods of tensors that would read a tensor's data."""
    tensor = torch.Tensor
    numpy, describe = tensor.numpy, tensor.__format__

    @covers(tensor, "numpy")
    def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if on_device(self):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        is_fake = hasattr(self, "fake_device")
        return numpy(device.on_host(self.detach()) if is_fake else self, *args, **kwargs)

    @covers(tensor, "__format__")
    def to_text(self: Any, specification: str) -> str:
        if hasattr(self, "fake_device") and self.dim() == 0:
            return format(self.item(), specification)
        return str(describe(self, specification))


def _choose(torch: Any, recorder: Recorder) -> None:
    """Make torch choose implementations for simulated tensors as it does for tensors on a GPU."""
    functional, fake_class = torch.nn.functional, import_module("torch._subclasses.fake_tensor").FakeTensor
    attend = kernels.attention(torch, functional.scaled_dot_product_attention)
    functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention = attend
    torch.dropout = torch._VF.dropout = kernels.dropout(torch, torch.dropout)
    torch.backends.mha.set_fastpath_enabled(False)
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        kinds = getattr(import_module(name), "_foreach_supported_types", None)
        if kinds is not None and fake_class not in kinds:
            kinds.append(fake_class)
    group = torch._C._group_tensors_by_device_and_dtype

    @covers(torch._C, "_group_tensors_by_device_and_dtype")
    def by_device(*args: Any, **kwargs: Any) -> Any:
        found = group(*args, **kwargs)
        cuda, inside = torch.device("cuda", 0), torch.device(mode.INSIDE, 0)
        return {
            (cuda if device == inside else device, dtype): held for (device, dtype), held in found.items()
        }

    def compile(model: Any = None, **kwargs: Any) -> Any:
        recorder.notes[
            "torch.compile is left out: its graphs need less for activations and more to compile"
        ] = None
        return model if model is not None else (lambda function: function)

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: compile()


def _keep_parameters(torch: Any, device: Any, recorder: Recorder) -> None:
    """Remove the data from parameters when they are registered; keep the parameter objects when the module is
    moved."""

    @covers(torch.nn.Module, "_apply")
    def apply(self: Any, function: Any, recurse: bool = True) -> Any:
        # torch swaps tensors without data, which fails if a weak reference points to one.
        for child in self.children() if recurse else ():
            child._apply(function)
        with torch.no_grad():
            for key, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[key] = device.moved(parameter, function(parameter))
                    if parameter.grad is not None:
                        self._parameters[key].grad = function(parameter.grad)
            self._buffers.update(
                {key: function(held) for key, held in self._buffers.items() if held is not None}
            )
        return self

    def register(module: Any, name: str, parameter: Any) -> Any:
        if isinstance(module, torch.nn.RNNBase):
            recorder.notes["recurrent layers run step by step: cuDNN keeps another amount for backward"] = (
                None
            )
        is_plain = type(parameter) is torch.nn.Parameter and parameter.device.type == "cpu"
        return device.parameter(parameter) if is_plain else None

    torch.nn.modules.module.register_module_parameter_registration_hook(register)
