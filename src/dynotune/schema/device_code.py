"""GPU code in files: the code's architectures, and how a GPU can run the code. Defined in
docs/reference/startup.md."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

Form = Literal["machine", "ptx", "lto", "other"]
Suffix = Literal["", "a", "f"]
ContainerVerdict = Literal["native", "jit", "cannot", "unknown", "empty"]
LibraryVerdict = Literal["native", "partial", "jit", "cannot", "unknown", "empty"]


class Code(msgspec.Struct, frozen=True):
    """One piece of code in a fat binary, for one architecture.

    Args:
        form: machine code, PTX, code for the linker, or an unknown kind.
        sm: number of the architecture: 90 for compute capability 9.0, 120 for 12.0.
        suffix: "a" for code that runs on the capability `sm` alone, "f" for code that runs on the family of
            `sm`.
        stored_bytes: size of the code in the file, where the code may be compressed.
        code_bytes: size of the loaded code.
        ptx_version: version of the PTX language, major and minor; None for other forms.
        kind: number of the kind of code, from the code's header.
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
        """Return the code's name: `sm_90a`, `compute_120`, `lto_80`; or `kind16_80` if the kind is not
        known."""
        stem = {"machine": "sm", "ptx": "compute", "lto": "lto"}.get(self.form, f"kind{self.kind}")
        return f"{stem}_{self.sm}{self.suffix}"


Container = tuple[Code, ...]
"""One fat binary: the same functions compiled for several architectures, of which the driver loads one."""


class Problem(msgspec.Struct, frozen=True):
    """A file that could not be read, or could be read only in part.

    `path`: the file or folder. `what`: the problem, the problem's reason, and the facts that the result
        lacks.
    """

    path: str
    what: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU for which the verdicts on libraries are made.

    Args:
        compute_capability: the GPU's compute capability, for instance `9.0`.
        name: name of the GPU; "" if only a capability was given.
        cuda_driver: newest CUDA version that the driver supports, such as `13.0`; None if no driver is
            considered.
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
    """How one GPU can run a library, by the verdicts on the library's containers (fat binaries).

    Args:
        verdict: `native`: all containers run; `partial`: some containers have no code for this GPU, the
            others run; `jit`: some are compiled when loaded; `cannot`: none runs; `unknown`: some are
            unclear; `empty`: no function.
        ptx_bytes: total PTX of the containers that the driver compiles: an upper bound of the PTX that is
            compiled.
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
        num_containers: number of fat binaries that can be loaded; a `.cubin` or `.ptx` file counts as one.
        architectures: the architectures of the library's code.
        link_input: whether the code is input for the linker (`__nv_relfatbin`); the driver never loads such
            code.
        verdicts: one verdict for each GPU.
    """

    path: str
    num_containers: int
    architectures: list[Architecture]
    link_input: list[Architecture]
    verdicts: list[Verdict]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary for one GPU: the number of libraries with each verdict, and the most bytes of PTX to
    compile."""

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
        gpus: the summary for each GPU; Unknown, with the reason, without a summary.
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
