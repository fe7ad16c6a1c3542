"""GPU code in files: for which architectures, and what a GPU can do with it. Defined in docs/reference/startup.md."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

Form = Literal["machine", "ptx", "lto", "other"]
Suffix = Literal["", "a", "f"]
ContainerVerdict = Literal["native", "jit", "cannot", "unknown", "empty"]
LibraryVerdict = Literal["native", "partial", "jit", "cannot", "unknown", "empty"]


class Code(msgspec.Struct, frozen=True):
    """One piece of code in a fat binary.

    Args:
        form: machine code, PTX, code for the linker, or a kind that is not known here.
        sm: architecture as in its name: 90 for compute capability 9.0, 120 for 12.0.
        suffix: "a" runs on that capability alone, "f" on its family.
        stored_bytes: in the file, where it may be compressed.
        code_bytes: as it is loaded.
        ptx_version: of the PTX language, major and minor; None for other forms.
        kind: as its header numbers it.
    """

    form: Form
    sm: int
    suffix: Suffix
    stored_bytes: int
    code_bytes: int
    ptx_version: tuple[int, int] | None = None
    kind: int = 0

    @property
    def name(self) -> str:
        """Name it `sm_90a`, `compute_120`; `lto_80`; `kind16_80` if the kind is not known."""
        stem = {"machine": "sm", "ptx": "compute", "lto": "lto"}.get(self.form, f"kind{self.kind}")
        return f"{stem}_{self.sm}{self.suffix}"


Container = tuple[Code, ...]
"""One fat binary: the same functions for several architectures. The driver takes one piece of it."""


class Problem(msgspec.Struct, frozen=True):
    """File that could not be read, or not in whole.

    `path`: the file or folder. `what`: what happened, why, and what is missing for it.
    """

    path: str
    what: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """GPU that code is judged for.

    Args:
        compute_capability: as `9.0`.
        name: of the GPU; "" where only a capability was named.
        cuda_driver: newest CUDA that the driver knows, as `13.0`; None where no driver is meant.
    """

    compute_capability: str
    name: str = ""
    cuda_driver: str | None = None


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """All code of one name in a library."""

    name: str
    form: Form
    num: int
    stored_bytes: int
    code_bytes: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of a GPU on one library, container by container.

    Args:
        verdict: `native` all run; `partial` some have no code for this GPU, the rest runs; `jit` some are compiled
            when they are loaded; `cannot` none runs; `unknown` some cannot be told; `empty` there is no function.
        ptx_bytes: PTX of the containers that are compiled, all together: the most that is compiled.
        num_too_new: of those that cannot run, how many only because the driver is older than their PTX.
    """

    compute_capability: str
    verdict: LibraryVerdict
    num_native: int = 0
    num_jit: int = 0
    num_cannot: int = 0
    num_unknown: int = 0
    num_empty: int = 0
    num_too_new: int = 0
    ptx_bytes: int = 0


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A file with GPU code.

    Args:
        num_containers: fat binaries that can be loaded; a `.cubin` or `.ptx` file is one.
        architectures: what is in them.
        link_input: code for the linker (`__nv_relfatbin`): nothing of it is ever loaded.
        verdicts: one for each GPU.
    """

    path: str
    num_containers: int
    architectures: list[Architecture]
    link_input: list[Architecture]
    verdicts: list[Verdict]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of a GPU on all libraries: how many have each, and the most PTX that is compiled."""

    gpu: Gpu
    num_native: int
    num_partial: int
    num_jit: int
    num_cannot: int
    num_unknown: int
    ptx_bytes: int


class DeviceCode(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune startup scan --json`.

    Args:
        places: files and folders that were scanned.
        gpus: why there is no summary, where it is Unknown.
        num_files: files that were opened.
        libraries: those with GPU code, by path.
        complete: False where the time was up before every file was read.
    """

    schema: str = "dynotune.device-code/1"
    places: list[str]
    gpus: list[Gpu] | Unknown
    num_files: int
    duration_s: float
    complete: bool
    libraries: list[Library]
    summaries: list[Summary]
    problems: list[Problem]
