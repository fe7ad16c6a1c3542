"""Show in the terminal which GPU code libraries contain and what a GPU does with the code."""

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.layout import fields, spaced, table
from dynotune.schema.device_code import Architecture, DeviceCode, Library, Summary, Verdict
from dynotune.schema.facts import Unknown
from dynotune.text import words

MOST_LIBRARIES, MOST_PROBLEMS = 25, 8
STYLES = {
    "cannot": "red",
    "jit": "yellow",
    "unknown": "yellow",
    "partial": "",
    "native": "green",
    "empty": "dim",
}
"""The style of each verdict, the worst verdict first."""
OF_OTHERS = "in part"

PARTIAL = (
    f"{OF_OTHERS}: the rest is for other GPUs. NVIDIA's libraries hold kernels for one GPU each and "
    "choose among them. In an extension of your own, a call of a kernel for another GPU fails."
)
JIT = (
    "compiled: the driver compiles the parts of this PTX that a program uses, at their first use, and "
    "again in every fresh container. Install a build for this GPU, or build with "
    "TORCH_CUDA_ARCH_LIST={capability}; else keep the result: CUDA_CACHE_PATH on a disk that lasts, "
    "CUDA_CACHE_MAXSIZE large enough (4294967296 is the most)."
)
CANNOT = (
    "cannot run: there is neither machine code nor PTX for this GPU. Install a build for it, or build with "
    "TORCH_CUDA_ARCH_LIST={capability}."
)
TOO_NEW = (
    "too new: this driver is older than the PTX and cannot compile it. Update the driver, or install a "
    "build whose "
    "machine code fits."
)


def device_code_report(found: DeviceCode, *, every: bool = False) -> RenderableType:
    """Show the whole answer: the scanned libraries, what each GPU does with them, worst first, and the
    remedies.

    Args:
        every: whether to show all libraries and problems.
    """
    parts: list[RenderableType] = [_head(found)]
    if found.libraries:
        parts.append(_libraries(found, every=every))
    parts += [Text(line, style="dim") for line in _advice(found)]
    if found.problems:
        parts.append(_problems(found, every=every))
    return spaced(parts)


def _head(found: DeviceCode) -> RenderableType:
    num = len(found.libraries)
    places = ", ".join(words.plain(place, longest=200) for place in found.places) or "nothing"
    held = "no GPU code"
    if num:
        stored = words.num_bytes(sum(_stored_bytes(library.architectures) for library in found.libraries))
        libraries = f"{words.count(num)} {'library' if num == 1 else 'libraries'}"
        held = f"{libraries} with GPU code, {stored} of it"
    what = f"{words.count(found.num_files)} files in {words.duration(found.duration_s)}; {held}"
    if not found.complete:
        what += "; not complete"
    rows: list[tuple[str, str | Text]] = [("scanned", places), ("", what)]
    if isinstance(found.gpus, Unknown):
        rows.append(("GPU", f"unknown: {found.gpus.reason}. --compute-capability X.Y judges for one."))
    if num:
        rows += ((f"for {summary.gpu.compute_capability}", _summary(summary)) for summary in found.summaries)
    return fields(rows)


def _summary(summary: Summary) -> Text:
    """Summarise the libraries, worst first; with the GPU's name if it is known."""
    said = [
        (summary.num_cannot, "cannot run", STYLES["cannot"]),
        (
            summary.num_jit,
            f"compiled at load (up to {words.num_bytes(summary.ptx_bytes)} of PTX)",
            STYLES["jit"],
        ),
        (summary.num_unknown, "not known", STYLES["unknown"]),
        (summary.num_partial, f"native {OF_OTHERS}", ""),
        (summary.num_native, "native", STYLES["native"]),
    ]
    text = Text(", ").join(Text(f"{num} {what}", style) for num, what, style in said if num)
    text = text or Text("there is no function to run")
    return text.append(f" ({words.plain(summary.gpu.name)})", style="dim") if summary.gpu.name else text


def _libraries(found: DeviceCode, *, every: bool) -> RenderableType:
    gpus = [] if isinstance(found.gpus, Unknown) else found.gpus
    judged = (f"for {gpu.compute_capability}:text" for gpu in gpus)
    rows = table("Library:text", "GPU code:text", *judged, style="bold")
    ordered = sorted(found.libraries, key=_badness)
    shown = ordered if every else ordered[:MOST_LIBRARIES]
    root = _common_folder(found)
    for library in shown:
        name = words.plain(os.path.relpath(library.path, root) if root else library.path, longest=200)
        rows.add_row(Text(name), _code(library), *map(_verdict, library.verdicts))
    return Group(rows, *_more(len(ordered) - len(shown)))


def _more(left: int) -> list[Text]:
    return [Text(f"and {left} more; --all shows them.", style="dim")] if left else []


def _badness(library: Library) -> tuple[int, int, str]:
    worst = min(([*STYLES].index(verdict.verdict) for verdict in library.verdicts), default=0)
    return worst, -sum(verdict.ptx_bytes for verdict in library.verdicts), library.path


def _common_folder(found: DeviceCode) -> str:
    folders = {str(PurePath(library.path).parent) for library in found.libraries}
    try:
        return os.path.commonpath(folders)
    except ValueError:
        # Some paths are relative, others not.
        return ""


def _stored_bytes(architectures: Iterable[Architecture]) -> int:
    return sum(each.stored_bytes for each in architectures)


def _code(library: Library) -> Text:
    parts = []
    for form, title in (("machine", "sm"), ("ptx", "PTX"), ("lto", "LTO"), ("other", "kinds not known")):
        alike = [each.name for each in library.architectures if each.form == form]
        if alike:
            names = " ".join(name if form == "other" else name.partition("_")[2] for name in alike)
            parts.append(Text.assemble((f"{title} ", "dim"), names))
    if library.link_input:
        size = words.num_bytes(_stored_bytes(library.link_input))
        parts.append(Text(f"{size} for the linker, never loaded", "dim"))
    text = Text("; ").join(parts)
    if library.architectures:
        text.append(f" ({words.num_bytes(_stored_bytes(library.architectures))})", style="dim")
    return text


def _verdict(verdict: Verdict) -> Text:
    num = verdict.num_native + verdict.num_jit + verdict.num_cannot + verdict.num_unknown

    def among(what: str, part: int, sign: str = ": ") -> str:
        return what if num == 1 else f"{what}{sign}{words.count(part)} of {words.count(num)}"

    said = {
        "native": "native",
        "partial": among(f"native {OF_OTHERS}", verdict.num_native),
        "jit": among(f"compiled: {words.num_bytes(verdict.ptx_bytes)} of PTX", verdict.num_jit, ", "),
        "cannot": "cannot run",
        "unknown": among("not known", verdict.num_unknown),
        "empty": "no function",
    }[verdict.verdict]
    text = Text(said, style=STYLES[verdict.verdict])
    if verdict.num_too_new:
        text.append(f"; too new for the driver: {words.count(verdict.num_too_new)}", style="red")
    elif verdict.verdict in ("jit", "unknown") and verdict.num_cannot:
        text.append(f"; cannot run: {words.count(verdict.num_cannot)}", style="dim")
    return text


def _advice(found: DeviceCode) -> list[str]:
    """Explain the words in the table above, and say what to do."""
    lines = []
    for summary in found.summaries:
        capability = summary.gpu.compute_capability
        lines += [CANNOT.format(capability=capability)] * bool(summary.num_cannot)
        lines += [JIT.format(capability=capability)] * bool(summary.num_jit)
        lines += [PARTIAL] * bool(summary.num_partial)
    if any(verdict.num_too_new for library in found.libraries for verdict in library.verdicts):
        lines.append(TOO_NEW)
    return [*dict.fromkeys(lines)]


def _problems(found: DeviceCode, *, every: bool) -> RenderableType:
    shown = found.problems if every else found.problems[:MOST_PROBLEMS]
    lines = [Text("Could not be read", style="bold")]
    for path, group in groupby(shown, key=lambda problem: problem.path):
        lines += [Text(words.plain(path, longest=300))]
        lines += [Text(f"  {words.plain(problem.what, longest=400)}", style="dim") for problem in group]
    return Group(*lines, *_more(len(found.problems) - len(shown)))
