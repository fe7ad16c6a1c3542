"""GPU code in files: its architectures, and how a GPU can run it. Defined in docs/reference/startup.md."""

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
        form: machine code, PTX, code for the linker, or an unknown kind.
        sm: architecture as in its name: 90 for compute capability 9.0, 120 for 12.0.
        suffix: "a" for code that runs on that capability alone, "f" for code that runs on its family.
        stored_bytes: size in the file, where the code may be compressed.
        code_bytes: size of the loaded code.
        ptx_version: version of the PTX language, major and minor; None for other forms.
        kind: number of the kind in the code's header.
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
        """Return the name: `sm_90a`, `compute_120`; `lto_80`; `kind16_80` if the kind is not known."""
        stem = {"machine": "sm", "ptx": "compute", "lto": "lto"}.get(self.form, f"kind{self.kind}")
        return f"{stem}_{self.sm}{self.suffix}"


Container = tuple[Code, ...]
"""One fat binary: the same functions for several architectures. The driver loads one of its pieces."""


class Problem(msgspec.Struct, frozen=True):
    """A file that could not be read, or only in part.

    `path`: the file or folder. `what`: the problem, its reason, and what the result lacks.
    """

    path: str
    what: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU for which code is judged.

    Args:
        compute_capability: for instance `9.0`.
        name: name of the GPU; "" if only a capability was given.
        cuda_driver: newest CUDA that the driver supports, such as `13.0`; None if no driver is considered.
    """

    compute_capability: str
    name: str = ""
    cuda_driver: str | None = None


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """All code for one architecture in a library."""

    name: str
    form: Form
    num: int
    stored_bytes: int
    code_bytes: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU can run a library, judged container by container.

    Args:
        verdict: `native`: all containers run; `partial`: some have no code for this GPU, the others run; `jit`: some
            are compiled when loaded; `cannot`: none runs; `unknown`: some cannot be judged; `empty`: no function.
        ptx_bytes: total PTX of the containers that are compiled, an upper bound of what is compiled.
        num_too_new: number of containers that cannot run only because the driver is older than their PTX.
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
        num_containers: fat binaries that can be loaded; a `.cubin` or `.ptx` file counts as a single one.
        architectures: the architectures of its code.
        link_input: whether the code is input of the linker (`__nv_relfatbin`), which is never loaded.
        verdicts: one for each GPU.
    """

    path: str
    num_containers: int
    architectures: list[Architecture]
    link_input: list[Architecture]
    verdicts: list[Verdict]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of a GPU on all libraries: the number of libraries with each verdict, and the most PTX to compile."""

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
        gpus: Unknown, with the reason, if there is no summary.
        num_files: number of files that were opened.
        libraries: files with GPU code, by path.
        complete: False if the time limit ended before every file was read.
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
