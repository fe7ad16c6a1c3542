"""Read ELF files: positions of fat binaries, the architecture of a cubin, and the libraries that a file
needs."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from dynotune.schema.device_code import Code

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

T = TypeVar("T")
P = ParamSpec("P")

MAGIC = b"\x7fELF"
LOADED, LINK_INPUT = ".nv_fatbin", "__nv_relfatbin"
"""Section of fat binaries that are registered when the library is loaded, and section of those for the
linker."""

EM_CUDA = 190
LARGEST_NAMES_BYTES, MOST_SECTIONS = 16 << 20, 1 << 17

# e_flags of cubins, by ABI version. https://llvm.org/doxygen/BinaryFormat_2ELF_8h_source.html
ABI_OF_CUDA_13 = 8
SPECIFIC_OF_CUDA_12, SPECIFIC_OF_CUDA_13 = 0x800, 0x8
# In .nv.compat: a one-byte attribute that is 1 for `a` code. ptxas of CUDA 13.5 no longer sets the flag.
COMPATIBILITY, ARCHITECTURE_SPECIFIC = ".nv.compat", 9
BYTE, SHORT, SIZED = 2, 3, 4


class Unreadable(Exception):
    """Error: the file is not a complete ELF file; the message gives the reason."""


class Needed(msgspec.Struct, frozen=True):
    """A file's instructions for the dynamic linker.

    `names`: needed libraries. `rpath`, `runpath`: folders, unexpanded, searched before and after
        `LD_LIBRARY_PATH`.
    """

    names: list[str]
    rpath: list[str]
    runpath: list[str]


def _safely(question: Callable[P, T]) -> Callable[P, T]:
    """Convert errors of elftools, which trusts files to be well-formed, to Unreadable."""

    @functools.wraps(question)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return question(*args, **kwargs)
        except Unreadable:
            raise
        except Exception as error:
            # The kernel refuses to seek to an impossible position; any other error comes from the disk.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            text = ""
            with suppress(Exception):
                text = " ".join(str(error).split())[:200]
            raise Unreadable(f"it is not a complete ELF file: {text or type(error).__name__}") from error

    return asked


class Elf:
    """Read one ELF file. Every method raises Unreadable if the file is damaged."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._elf = self._open()
        self.is_cubin = self._elf.header["e_machine"] in ("EM_CUDA", EM_CUDA)

    @_safely
    def _open(self) -> ELFFile:
        from elftools.elf.elffile import ELFFile

        return ELFFile(self._file)

    @_safely
    def sections(self) -> list[tuple[str, int, int]]:
        """Return the sections of fat binaries: `LOADED` or `LINK_INPUT`, with begin and end offset of
        each."""
        names, found = self._names(), []
        if LOADED.encode() not in names and LINK_INPUT.encode() not in names:
            return []
        for section in self._some_sections():
            if section.name not in (LOADED, LINK_INPUT) or section.header["sh_type"] == "SHT_NOBITS":
                continue
            begin, size = section.header["sh_offset"], section.header["sh_size"]
            if begin + size > self._elf.stream_len:
                raise Unreadable(f"it is cut short: its section {section.name} ends at byte {begin + size}")
            found.append((section.name, begin, begin + size))
        return found

    def _names(self) -> bytes:
        """Read the names of all sections at once, because most files have no section of interest."""
        if not self._elf.num_sections():
            raise Unreadable("it has no table of sections: GPU code in it cannot be found")
        header = self._elf.get_section(self._elf.get_shstrndx()).header
        begin, size = header["sh_offset"], header["sh_size"]
        if size > LARGEST_NAMES_BYTES or begin + size > self._elf.stream_len:
            raise Unreadable("it is cut short or damaged: the names of its sections lie outside of it")
        self._file.seek(begin)
        return self._file.read(size)

    def _some_sections(self) -> Iterator[Any]:
        num = self._elf.num_sections()
        if num > MOST_SECTIONS:
            raise Unreadable(f"it is damaged: it names {num} sections")
        return (self._elf.get_section(at) for at in range(num))

    @_safely
    def cubin(self) -> Code:
        header = self._elf.header
        flags = int(header["e_flags"])
        if int(header["e_ident"]["EI_ABIVERSION"]) >= ABI_OF_CUDA_13:
            sm, specific = (
                flags >> 8 & 0xFF,
                bool(flags & SPECIFIC_OF_CUDA_13) or self._is_architecture_specific(),
            )
        else:
            sm, specific = flags & 0xFF, bool(flags & SPECIFIC_OF_CUDA_12)
        # `f` code has no flag and needs none: its machine code runs wherever plain machine code does.
        return Code(
            "machine", sm, "a" if specific else "", self._elf.stream_len, self._elf.stream_len, kind=2
        )

    def _is_architecture_specific(self) -> bool:
        for section in self._some_sections():
            if section.name == COMPATIBILITY and section.header["sh_size"] <= LARGEST_NAMES_BYTES:
                self._file.seek(section.header["sh_offset"])
                return _attribute(self._file.read(section.header["sh_size"]), ARCHITECTURE_SPECIFIC) == 1
        return False

    @_safely
    def needed(self) -> Needed:
        """List the libraries that the file is linked to."""
        names: list[str] = []
        folders: dict[str, list[str]] = {"DT_RPATH": [], "DT_RUNPATH": []}
        for segment in self._elf.iter_segments("PT_DYNAMIC"):
            dynamic: Any = segment
            for tag in dynamic.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    names.append(str(tag.needed))
                elif tag.entry.d_tag in folders:
                    text = str(tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath)
                    folders[tag.entry.d_tag] += [folder for folder in text.split(":") if folder]
        return Needed(names, [] if folders["DT_RUNPATH"] else folders["DT_RPATH"], folders["DT_RUNPATH"])


def _attribute(content: bytes, wanted: int) -> int | None:
    """Return the value of a one-byte attribute; attributes take one byte, two bytes, or a size that they
    state."""
    at = 0
    while at + 4 <= len(content):
        form, attribute = content[at], content[at + 1]
        if form == BYTE and attribute == wanted:
            return content[at + 2]
        if form == SIZED:
            at += int.from_bytes(content[at + 2 : at + 4], "little")
        elif form not in (BYTE, SHORT):
            return None
        at += 4
    return None
