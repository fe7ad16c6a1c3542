"""`torch.cuda` and its neighbours as they answer on the GPU asked for; what would reach a driver does nothing."""

from __future__ import annotations

import contextlib
from importlib import import_module
from types import SimpleNamespace

from . import guard, kernels, mode
from .recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program


class Stream:
    """A stream or an event: work is done at once, so there is nothing to wait for."""

    stream_id = device_index = device_type = cuda_stream = 0
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def record(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait = wait_event = wait_stream = synchronize = record


class Event(Stream):
    """An event that has happened."""


def pretend(torch: Any, gpu: dict[str, Any], program: Program) -> None:
    """Give the process a CUDA device without memory and work; `program.allocations` notes what is allocated on it.

    A torch that cannot be run so is the reason in the recorder's answer.

    Args:
        gpu: `name`, `total_bytes`, `compute_capability` as `[major, minor]`, `num_multiprocessors`.
    """
    recorder = program.allocations = Recorder(torch, program.folder, program.event)
    try:
        guard.install(torch)
    except guard.CannotPretend as error:
        recorder.refuse(str(error))
        return
    device = mode.make(torch, recorder)
    _answer(torch, gpu, recorder)
    _values(torch, device)
    _choices(torch, device, recorder)
    recorder.watch()
    device.__enter__()  # for the life of the process


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stand in for what would reach a driver."""


def _answer(torch: Any, gpu: dict[str, Any], recorder: Recorder) -> None:
    """Questions about the device, and orders to it."""
    cuda = torch.cuda
    major, minor = gpu["compute_capability"]
    total = gpu["total_bytes"]
    properties = SimpleNamespace(
        name=gpu["name"], major=major, minor=minor, total_memory=total, warp_size=32,
        multi_processor_count=gpu["num_multiprocessors"], is_integrated=0, is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, gcnArchName="",
    )  # fmt: skip
    always = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True,
        "get_device_name": gpu["name"], "get_device_properties": properties, "get_device_capability": (major, minor),
        "is_bf16_supported": major >= 8, "get_arch_list": ["sm_%d%d" % (major, minor)], "current_blas_handle": 0,
        "is_current_stream_capturing": False, "get_rng_state_all": [], "memory_summary": "", "utilization": 0,
        "_is_in_bad_fork": False, "is_tf32_supported": major >= 8, "get_device_index": 0,
    }  # fmt: skip
    for name, answer in always.items():
        setattr(cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    for name in (
        "init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed",
        "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats",
        "reset_max_memory_allocated", "reset_max_memory_cached", "set_per_process_memory_fraction", "set_stream",
    ):  # fmt: skip
        for owner in (cuda, cuda.memory, cuda.random):
            if hasattr(owner, name):
                setattr(owner, name, nothing)
    cuda.get_rng_state = lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8)
    cuda.memory_allocated = cuda.memory_reserved = lambda *args: recorder.live_bytes
    cuda.max_memory_allocated = cuda.max_memory_reserved = lambda *args: recorder.peak_bytes
    cuda.mem_get_info = lambda *args: (total - recorder.live_bytes, total)
    cuda.memory_stats = lambda *args: {"allocated_bytes.all.current": recorder.live_bytes, "num_alloc_retries": 0}
    cuda.current_stream = cuda.default_stream = lambda *args: Stream()
    cuda.Stream, cuda.Event, cuda.stream, cuda.StreamContext = Stream, Event, Stream, Stream
    cuda.device = cuda.device_of = lambda *args: contextlib.nullcontext()
    cuda.nvtx = SimpleNamespace(range_push=nothing, range_pop=nothing, mark=nothing, range=contextlib.nullcontext)
    accelerator = torch.accelerator
    for name, answer in {
        "is_available": True, "device_count": 1, "current_device_index": 0, "current_device_idx": 0,
        "current_accelerator": torch.device("cuda"),
    }.items():  # fmt: skip
        setattr(accelerator, name, lambda *args, _answer=answer, **kwargs: _answer)
    for name in ("synchronize", "set_device_index", "set_device_idx", "set_stream"):
        setattr(accelerator, name, nothing)
    accelerator.current_stream = lambda *args: Stream()
    if torch.version.cuda is None:
        torch.version.cuda = "13.0"
    torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.is_available = lambda: True

    class NoGraph:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise mode.Refused(recorder.refuse("it captures CUDA graphs, whose private pools are not modelled"))

    def no_group(*args: Any, **kwargs: Any) -> None:
        raise mode.Refused(recorder.refuse("it is distributed: only programs of one process are modelled"))

    if torch.distributed.is_available():
        torch.distributed.init_process_group = no_group
    cuda.CUDAGraph = cuda.graph = cuda.make_graphed_callables = NoGraph


def _values(torch: Any, device: Any) -> None:
    """Methods of a tensor that would look at its data."""
    tensor, fake_class = torch.Tensor, device.fake_class
    numpy, describe = tensor.numpy, tensor.__format__

    def with_data(self: Any) -> Any:
        return device.on_host(self) if isinstance(self, fake_class) else self

    def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if device.is_on_device(self):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return numpy(with_data(self.detach() if isinstance(self, fake_class) else self), *args, **kwargs)

    def to_text(self: Any, specification: str) -> str:
        if isinstance(self, fake_class) and self.dim() == 0:
            return format(self.item(), specification)
        return str(describe(self, specification))

    tensor.numpy, tensor.__format__ = to_numpy, to_text
    tensor.pin_memory = lambda self, *args, **kwargs: self
    tensor.is_pinned = lambda self, *args, **kwargs: False
    tensor.record_stream = lambda self, stream: None


def _choices(torch: Any, device: Any, recorder: Recorder) -> None:
    """What torch chooses by the kind of tensor or device."""
    functional = torch.nn.functional
    attend = kernels.attention(torch, device.is_on_device, functional.scaled_dot_product_attention)
    functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention = attend
    torch.backends.mha.set_fastpath_enabled(False)
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        kinds = getattr(import_module(name), "_foreach_supported_types", None)
        if kinds is not None and device.fake_class not in kinds:
            kinds.append(device.fake_class)

    def compile(model: Any = None, **kwargs: Any) -> Any:
        recorder.note("torch.compile is left out: its graphs need less for activations and more for compiling")
        return model if model is not None else (lambda function: function)

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: compile()

    def apply(self: Any, function: Any, recurse: bool = True) -> Any:
        # torch swaps tensors without data, which fails where a weak reference points to one.
        for child in self.children() if recurse else ():
            child._apply(function)
        with torch.no_grad():
            for key, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[key] = device.moved(parameter, function(parameter))
                    if parameter.grad is not None:
                        self._parameters[key].grad = function(parameter.grad)
            for key, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[key] = function(buffer)
        return self

    torch.nn.Module._apply = apply

    def register(module: Any, name: str, parameter: Any) -> Any:
        is_plain = type(parameter) is torch.nn.Parameter and parameter.device.type == "cpu"
        return device.parameter(parameter) if is_plain else None

    torch.nn.modules.module.register_module_parameter_registration_hook(register)
