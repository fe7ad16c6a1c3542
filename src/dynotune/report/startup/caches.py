"""Show compile caches in the terminal: filled, packed, unpacked."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.export import container, docker_variables, kubernetes_quoted
from dynotune.report.layout import fields, table
from dynotune.schema.cache_pack import Difference, LeftOut, Packed, Unpacked
from dynotune.schema.caches import TITLES, Cache, Warmed
from dynotune.schema.facts import Unknown
from dynotune.schema.toml_text import quoted
from dynotune.text import words

DANGER = "Compile caches are code: the command runs their libraries, machine code and pickles as its own."
HEADLINES = {
    "warm": ("Warm: ", "bold green", "the last run compiled nothing that a cache keeps."),
    "nothing": (
        "Nothing: ",
        "bold yellow",
        "no run added anything to a cache, and the caches were empty.",
    ),
    "not-warm": ("Not warm: ", "bold red", "every run added something."),
}
NOTHING = (
    "The command compiles nothing for these caches, or keeps it elsewhere: a program can set "
    "TORCHINDUCTOR_CACHE_DIR "
    "itself, and libraries such as vLLM have caches of their own."
)
SEVERITY_STYLES = {"dangerous": "bold red", "useless": "red", "unknown": "yellow", "harmless": "dim"}
MOST_LEFT_OUT = 5
FOLDER, VOLUME = "/opt/compile-caches", "compile-caches"


def warmed_report(warmed: Warmed) -> RenderableType:
    """Show a row per warming run, the caches after the runs, and the variables to set."""
    name, style, text = HEADLINES[warmed.end]
    parts: list[RenderableType] = [Text.assemble((name, style), text), Padding(_runs(warmed), (1, 0))]
    parts += _notes(warmed.why)
    if warmed.end == "nothing":
        parts.append(Text(NOTHING))
    parts.append(Padding(caches_table(warmed.caches), (1, 0)))
    parts += _notes(warmed.notes) + _to_set(warmed.variables)
    if warmed.end == "warm":
        parts += _lines("To take them elsewhere:", [_pack_line(warmed)])
    return Group(*parts)


def caches_table(caches: Sequence[Cache]) -> RenderableType:
    """Show the folder and size of each cache, and whether it lasts."""
    rows = table("cache:text", "size:text", "files:text", "lasts:text", "folder:dim", style="bold")
    for cache in caches:
        if cache.off:
            rows.add_row(TITLES[cache.name], "–", "–", "–", words.plain(f"not used: {cache.off}"))
            continue
        size = words.UNKNOWN if isinstance(cache.size_bytes, Unknown) else words.num_bytes(cache.size_bytes)
        num = words.UNKNOWN if isinstance(cache.num_files, Unknown) else f"{cache.num_files:,}"
        lasts = "?" if isinstance(cache.lasts, Unknown) else "yes" if cache.lasts else "no"
        where = cache.path.reason if isinstance(cache.path, Unknown) else cache.path
        shown = where if cache.writable is not False else f"{where}; not writable"
        rows.add_row(TITLES[cache.name], size, num, lasts, words.plain(shown))
    return rows


def packed_report(packed: Packed, variables: dict[str, str]) -> RenderableType:
    """Show the contents of the pack, the machine for which it was made, and the lines that unpack it
    elsewhere.

    Args:
        variables: environment variables that name caches below `FOLDER`, for the lines that unpack.
    """
    files = f"{len(packed.manifest.files):,} files of {words.num_bytes(packed.manifest.total_bytes)}"
    what = f"{words.plain(packed.file)}, {words.num_bytes(packed.size_bytes)}, {files}"
    taken_by = f"--sha256 {packed.sha256}"
    fill = f"dynotune startup unpack caches.pack {taken_by} --caches {FOLDER}"
    return Group(
        Text.assemble(("Packed: ", "bold green"), what),
        Padding(_contents(packed), (1, 0)),
        Text.assemble(("sha256 ", "dim"), packed.sha256),
        *_left_out(packed.left_out),
        *_notes(packed.notes),
        Text(DANGER, style="yellow"),
        *_lines("Elsewhere:", [f"dynotune startup unpack {words.plain(packed.file)} {taken_by}"]),
        *_lines("In a Dockerfile:", docker_unpack(packed, variables)),
        *_lines("On a Kubernetes volume:", kubernetes([FOLDER], variables, fill)),
    )


def unpacked_report(unpacked: Unpacked, *, trusted_by: str) -> RenderableType:
    """Show what was unpacked where, how this machine differs, and the lines for an image and a volume.

    Args:
        trusted_by: the option that allowed unpacking, to repeat in the lines for an image and a volume.
    """
    kept = f", {unpacked.num_kept:,} were there already" if unpacked.num_kept else ""
    what = f"{unpacked.num_new:,} files of {words.num_bytes(unpacked.new_bytes)}{kept}."
    folders = table(":", ":dim")
    for cache, folder in unpacked.folders.items():
        folders.add_row(TITLES[cache], Text(words.plain(folder)))
    below = f" --caches {words.command([unpacked.below])}" if unpacked.below else ""
    fill = f"dynotune startup unpack {words.command([unpacked.file])} {trusted_by}{below}"
    return Group(
        Text.assemble(("Unpacked: ", "bold green"), what),
        Padding(folders, (1, 0)),
        *differences_lines(unpacked.differences),
        *_left_out(unpacked.left_out),
        *_notes(unpacked.notes),
        *_to_set(unpacked.variables),
        *_lines("In a Dockerfile:", docker_copy(unpacked)),
        *_lines("On a Kubernetes volume:", kubernetes(mounts(unpacked), unpacked.variables, fill)),
    )


def _notes(notes: Iterable[str]) -> list[RenderableType]:
    return [Text(f"· {words.plain(note)}", style="yellow") for note in notes]


def _to_set(variables: Mapping[str, str]) -> list[RenderableType]:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return _lines("Set these for every start:", lines) if lines else []


def of_keys(differing: str) -> str:
    """Return the note on a variable that differs, in the form of `conditions.differing_variables`."""
    return f"{differing}. Inductor's keys hold this variable: with another value, graphs are compiled again."


def differences_lines(differences: Iterable[Difference]) -> list[Text]:
    """Write a line for each condition that this machine does not meet."""
    return [
        Text.assemble(
            (f"{each.severity}: ", SEVERITY_STYLES[each.severity]),
            f"{each.what}: packed with {words.plain(each.packed)}; here {words.plain(each.here)}. ",
            (f"{each.why}.", "dim"),
        )
        for each in differences
    ]


def _runs(warmed: Warmed) -> RenderableType:
    rows = table("run:", "first step:", "took:", "added:", "where:", style="bold")
    for number, run in enumerate(warmed.runs, 1):
        where = ", ".join(
            f"{TITLES[each.name]} {each.num_files:,} ({words.num_bytes(each.size_bytes)})"
            for each in run.added
            if each.num_files
        )
        dropped = sum(each.num_removed for each in run.added)
        rows.add_row(
            str(number),
            words.duration(run.time_to_first_step_s),
            words.duration(run.wall_s),
            f"{run.num_added:,} files" if run.num_added else "nothing",
            where + (f"; {dropped:,} dropped" if dropped else ""),
        )
    return rows


def _contents(packed: Packed) -> RenderableType:
    rows: list[tuple[str, str]] = []
    for cache in packed.manifest.caches:
        mine = [file.size_bytes for file in packed.manifest.files if file.cache == cache]
        rows.append((TITLES[cache], f"{len(mine):,} files, {words.num_bytes(sum(mine))}"))
    known = packed.manifest.conditions
    held = {
        "GPU": None if known.gpus is None else ", ".join(known.gpus),
        "driver": known.driver,
        "torch": known.torch,
        "CUDA of torch": known.cuda,
        "Triton": known.triton,
        "Python": known.python,
        "processor": known.cpu,
        "compiler": known.compiler,
    }
    rows += (
        (label, words.UNKNOWN if value is None else words.plain(value) or "none")
        for label, value in held.items()
    )
    return fields(rows)


def _left_out(left_out: Sequence[LeftOut]) -> list[Text]:
    lines = [
        Text(
            f"left out: {TITLES[each.cache]} {words.plain(each.path)}: {words.plain(each.reason)}",
            style="yellow",
        )
        for each in left_out[:MOST_LEFT_OUT]
    ]
    if len(left_out) > MOST_LEFT_OUT:
        lines.append(Text(f"and {len(left_out) - MOST_LEFT_OUT:,} more; --json has them all", style="yellow"))
    return lines


def _lines(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """Return lines to copy; print them with `soft_wrap`, or the console breaks them."""
    return [Text(""), Text(title, style="bold"), *(Text(f"  {line}") for line in lines)]


def _pack_line(warmed: Warmed) -> str:
    below = warmed.variables.get("TORCHINDUCTOR_CACHE_DIR", "")
    caches = f" --caches {words.command([below.rpartition('/')[0]])}" if below else ""
    return f"dynotune startup pack caches.pack{caches} -- {words.plain(words.command(warmed.command))}"


# Lines that give caches to an image, a volume or a shell


def docker_unpack(packed: Packed, variables: Mapping[str, str]) -> list[str]:
    """Write lines that unpack a pack while an image is built. `variables`: variables of the caches below
    `FOLDER`."""
    name, gpus = PurePosixPath(packed.file).name, packed.manifest.conditions.gpus
    target = words.plain(", ".join(gpus)) if gpus else "machines without a GPU"
    lines = [
        (
            "# For an image in which dynotune is installed; run it as the command's user. The pack is for "
            f"{target}."
        )
    ]
    if gpus:
        lines.append("# --force: where images are built there is no GPU to compare with.")
    options = f"--caches {FOLDER}{' --force' if gpus else ''}"
    if packed.manifest.command:
        options += f" -- {words.plain(words.command(packed.manifest.command))}"
    return [
        *lines,
        f"RUN --mount=type=bind,source={shlex.quote(name)},target=/tmp/caches.pack \\",
        f"    dynotune startup unpack /tmp/caches.pack --sha256 {packed.sha256} {options}",
        *docker_variables(variables),
    ]


def docker_copy(unpacked: Unpacked) -> list[str]:
    """Write lines that copy the unpacked files into an image at the same path: Triton's caches hold absolute
    paths."""
    return [
        "# From a build context that holds these folders; to the same place, which Triton's caches hold.",
        # The form of COPY that takes any name.
        *(f"COPY [{quoted(each.lstrip('/') + '/')}, {quoted(each + '/')}]" for each in mounts(unpacked)),
        *docker_variables(unpacked.variables),
    ]


def kubernetes(folders: Sequence[str], variables: Mapping[str, str], fill: str) -> list[str]:
    """Write YAML to merge into a pod's template: a volume that keeps the caches, mounted at the caches'
    paths.

    Args:
        folders: folders to mount, each a part of one volume.
        fill: the command that fills the volume once.
    """
    lines = [
        "# Merge this into the pod's template. An emptyDir does not do: it ends with the pod.",
        f"# Fill the volume once, in a pod that has it mounted: {fill}",
        *container(variables),
        "      volumeMounts:",
    ]
    for folder in folders:
        lines += [f"        - name: {VOLUME}", f"          mountPath: {kubernetes_quoted(folder)}"]
        if len(folders) > 1:
            lines.append(f"          subPath: {kubernetes_quoted(PurePosixPath(folder).name)}")
    lines += ["  volumes:", f"    - name: {VOLUME}", "      persistentVolumeClaim:"]
    lines.append(f"        claimName: {VOLUME}  # yours")
    return lines


def mounts(unpacked: Unpacked) -> list[str]:
    """Return the folders that hold all caches; the caches of `--caches DIR` share one folder."""
    folders = [PurePosixPath(folder) for folder in unpacked.folders.values()]
    if unpacked.below:
        below = PurePosixPath(unpacked.below)
        return [str(below), *(str(each) for each in folders if not each.is_relative_to(below))]
    outer = [
        each for each in folders if not any(each != other and each.is_relative_to(other) for other in folders)
    ]
    return [str(each) for each in dict.fromkeys(outer)]
