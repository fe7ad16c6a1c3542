"""Lines that give caches to an image, a volume or a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from dynotune.report.export import container, docker_variables, kubernetes_quoted
from dynotune.schema.cache_pack import Packed, Unpacked
from dynotune.schema.toml_text import quoted
from dynotune.text import words

FOLDER = "/opt/compile-caches"
VOLUME = "compile-caches"


def shell(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def docker_unpack(packed: Packed, variables: Mapping[str, str]) -> list[str]:
    """Lines that unpack a pack while an image is built.

    Args:
        variables: of the caches below `FOLDER`.
    """
    name = PurePosixPath(packed.file).name
    gpus = packed.manifest.conditions.gpus
    target = words.plain(", ".join(gpus)) if gpus else "machines without a GPU"
    lines = [f"# Where dynotune is installed in the image, as the user that the command runs as. It is for {target}."]
    force = ""
    if gpus:
        lines.append("# --force: where images are built there is no GPU to compare with.")
        force = " --force"
    lines += [
        f"RUN --mount=type=bind,source={shlex.quote(name)},target=/tmp/caches.pack \\",
        f"    dynotune startup unpack /tmp/caches.pack --sha256 {packed.sha256} --caches {FOLDER}{force}",
        *docker_variables(variables),
    ]
    return lines


def docker_copy(unpacked: Unpacked) -> list[str]:
    """Lines that copy what was unpacked into an image, to where it is now: Triton's caches hold absolute paths."""
    lines = ["# From a build context that holds these folders; to the same place, which Triton's caches hold."]
    for folder in mounts(unpacked):
        # The form of COPY that takes any name.
        lines.append(f"COPY [{quoted(folder.lstrip('/') + '/')}, {quoted(folder + '/')}]")
    return lines + docker_variables(unpacked.variables)


def kubernetes(folders: Sequence[str], variables: Mapping[str, str], fill: str) -> list[str]:
    """YAML to be merged into a pod's template: a volume that keeps the caches, mounted where they are.

    Args:
        folders: to be mounted, each a part of one volume.
        fill: the command that fills it, once.
    """
    lines = [
        "# Merge it into the pod's template. Not an emptyDir: that ends with the pod.",
        f"# Filled once, in a pod that has it mounted: {fill}",
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
    """The folders that hold all caches: those of `--caches DIR` are one."""
    folders = [PurePosixPath(folder) for folder in unpacked.folders.values()]
    if unpacked.below:
        below = PurePosixPath(unpacked.below)
        return [str(below), *(str(each) for each in folders if not each.is_relative_to(below))]
    outer = [each for each in folders if not any(each != other and each.is_relative_to(other) for other in folders)]
    return [str(each) for each in dict.fromkeys(outer)]
