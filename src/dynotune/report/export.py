"""Write a recipe for use without dynotune: for shell, Docker and Kubernetes, or sysctl for an
administrator."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import category

from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.toml_text import commented, quoted
from dynotune.text import words

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHM = "/dev/shm"
# Findings that only such a rule could make are named if the rule could not judge.
_SYSCTL_RULES = ("numa-balancing", "zone-reclaim")


@dataclass(frozen=True, slots=True)
class Parts:
    """A recipe, split by what is needed to apply it without dynotune.

    Args:
        recipe: path of the recipe file, as the user typed it.
        about: lines on the gain and the machine.
        command: the command on which the recipe was proved; may be empty.
        typed: settings that `dynotune run` accepts only from its own command line.
        left_out: settings that are exported only if the user types options, each with these options.
        variables: name to value; `secret` lists the names of variables whose values must not be written.
        preload: libraries to put first in LD_PRELOAD, by their sonames.
        unset: variables to remove.
        code: setting to the line of Python that applies the setting.
        beside: setting to the further action that the setting requires.
        shm_size: shared memory for the batches of loader workers, `16Gi`; "" if no setting needs any.
        shm_why: how the size of shared memory was determined.
    """

    recipe: str
    about: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    secret: list[str] = field(default_factory=list)
    preload: list[str] = field(default_factory=list)
    unset: list[str] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    shm_size: str = ""
    shm_why: str = ""

    @property
    def removed(self) -> list[str]:
        """List the variables to remove whose names a shell can use."""
        return [name for name in self.unset if _NAME.fullmatch(name)]


def shell(parts: Parts) -> str:
    """Write lines for a POSIX shell to read (`. FILE`, or `eval`): they set variables and start nothing."""
    lines = [*commented([*_introduction(parts), *_all_at_once(parts)]), ""]
    good, bad = _by_name(parts, may_hold="\n\t".__contains__)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in good.items()]
    if parts.preload:
        libraries = shlex.quote(":".join(parts.preload))
        lines.append(f'export LD_PRELOAD={libraries}"${{LD_PRELOAD:+:$LD_PRELOAD}}"')
    lines += [f"unset {name}" for name in parts.removed]
    lines += _nothing(parts)
    return _text([*lines, *_notes([*_set_by_program(parts), *bad, *_by_hand(parts)])])


def docker(parts: Parts) -> str:
    lines = [*commented(_introduction(parts)), ""]
    good, bad = _by_name(parts, may_hold=lambda sign: False)
    lines += docker_variables(good | ({"LD_PRELOAD": ":".join(parts.preload)} if parts.preload else {}))
    lines += _nothing(parts)
    notes = _set_by_program(parts)
    if parts.removed:
        notes += ["", "A Dockerfile cannot unset a variable. The command can:"]
        notes.append(f"CMD {json.dumps(_without(parts.removed, parts))}")
    if parts.shm_size:
        notes += ["", f"Loader workers pass their batches on in {SHM}, of which a container has 64 MiB:"]
        notes += [f"docker run --shm-size={parts.shm_size.removesuffix('i').lower()} …  ({parts.shm_why})"]
    notes += [*bad, *_by_hand(parts)]
    run = [*_run(parts, "/recipe.toml"), *_command(parts)]
    notes += ["", "All of it at once, where dynotune is installed in the image:"]
    notes += [f"COPY {json.dumps([parts.recipe, '/recipe.toml'])}", f"CMD {json.dumps(run)}"]
    return _text([*lines, *_notes(notes)])


def kubernetes(parts: Parts) -> str:
    """Write YAML to merge into a pod's template: env, and shared memory for loader workers."""
    good, bad = _by_name(parts, may_hold=lambda sign: sign != "\0" and category(sign) != "Cs")
    if parts.preload:
        good["LD_PRELOAD"] = ":".join(parts.preload)
    lines = commented([*_introduction(parts), "", "Merge it into the pod's template."])
    if not (good or parts.removed or parts.shm_size):
        lines += ["{}", *_nothing(parts)]
    else:
        lines += container(good)
        if parts.removed:
            lines += commented(["A pod cannot unset a variable of its image; the command can."])
            lines += ["      command:"]
            lines += [f"        - {kubernetes_quoted(word)}" for word in _without(parts.removed, parts)]
        if parts.shm_size:
            lines += ["      volumeMounts:", "        - name: shm", f"          mountPath: {SHM}"]
            lines += ["  volumes:", "    - name: shm", "      emptyDir:", "        medium: Memory"]
            lines += [f"        sizeLimit: {quoted(parts.shm_size)}  # {parts.shm_why}"]
            lines += commented(["Its contents count against the container's memory limit."])
    notes = [*_set_by_program(parts), *bad, *_by_hand(parts), *_all_at_once(parts)]
    return _text([*lines, *_notes(notes)])


def sysctl(recipe: str, findings: Sequence[Finding], unknown: Sequence[NotKnown]) -> str:
    """Write a file for /etc/sysctl.d from the findings of `doctor` on this machine; nothing is applied.

    Args:
        findings, unknown: results of the examination of this machine.
    """
    lines = commented(
        [
            (
                f"For an administrator, beside {recipe}: read these settings, put them into "
                "/etc/sysctl.d/60-dynotune.conf, and run sudo sysctl --system."
            ),
            (
                "dynotune never changes the machine, and has not proved what follows: it is what `dynotune "
                "doctor`"
            ),
            "finds on the machine that wrote this.",
        ]
    )
    others: list[str] = []
    num = 0
    for finding in findings:
        if finding.sysctls:
            num += len(finding.sysctls)
            lines += ["", *commented([f"{finding.id}: {finding.claim}", finding.remedy])]
            lines += [f"{name} = {value}" for name, value in finding.sysctls.items()]
        elif finding.needs_root:
            others += [f"{finding.id}: {finding.claim}", *(f"    {command}" for command in finding.commands)]
    if not num:
        lines += [
            "",
            *commented(["Nothing to set: no finding of the doctor's on this machine names a sysctl."]),
        ]
    lines += commented(
        f"Not judged: {each.id}: {each.reason}" for each in unknown if each.id in _SYSCTL_RULES
    )
    if others:
        lines += [
            "",
            *commented(["These findings are not about sysctls. For an administrator to judge:", *others]),
        ]
    return _text(lines)


def _introduction(parts: Parts) -> list[str]:
    lines = [f"From {parts.recipe}, by dynotune recipe export.", *parts.about]
    if parts.left_out:
        lines += [
            "",
            "Left out: settings that only you may set. If you trust one, export again with its option:",
        ]
        lines += [f"    {option}" for option in parts.left_out]
    if parts.secret:
        lines += ["", f"Left out, as secrets: {', '.join(parts.secret)}. Set them where the program starts."]
    return lines


def _run(parts: Parts, recipe: str) -> list[str]:
    return [
        "dynotune",
        "run",
        "--recipe",
        recipe,
        *(word for one in parts.typed for word in ("--set", one)),
        "--",
    ]


def _all_at_once(parts: Parts) -> list[str]:
    line = f"{words.command(_run(parts, parts.recipe))} {words.command(parts.command) or 'COMMAND'}"
    return ["", "All of it at once, checked in the running program:", f"    {line}"]


def _set_by_program(parts: Parts) -> list[str]:
    if not (parts.variables or parts.preload or parts.unset):
        return []
    return [
        "",
        "If the program sets such a variable itself, its value holds; under dynotune run, the recipe's does.",
    ]


def _by_hand(parts: Parts) -> list[str]:
    lines: list[str] = []
    if parts.code:
        lines += ["", "Not environment variables. In the program:"]
        lines += [f"    {line}  # {setting}" for setting, line in parts.code.items()]
    if parts.beside:
        lines += ["", *(f"{setting}: {text}" for setting, text in parts.beside.items())]
    return lines


def _nothing(parts: Parts) -> list[str]:
    if parts.variables or parts.preload or parts.unset:
        return []
    return commented(["No setting of this recipe is an environment variable."])


def _by_name(parts: Parts, *, may_hold: Callable[[str], bool]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a shell can name and the file can hold, and a note on the others.

    Args:
        may_hold: whether a value may contain a given non-printing character.
    """
    good = {name: value for name, value in parts.variables.items() if _NAME.fullmatch(name)}
    bad = [name for name in (*parts.variables, *parts.unset) if not _NAME.fullmatch(name)]
    # Other characters that cannot be printed could end the line, or control a terminal.
    strange = [
        name for name, value in good.items() if not all(_shows(sign) or may_hold(sign) for sign in value)
    ]
    notes = {
        f"Left out, as a shell cannot use this name: {', '.join(map(repr, bad))}. dynotune run can.": bad,
        (
            "Left out, because its value has characters that cannot be printed: "
            f"{', '.join(strange)}. dynotune run can set it."
        ): strange,
    }
    good = {name: value for name, value in good.items() if name not in strange}
    return good, ["", *(note for note, names in notes.items() if names)] if bad or strange else []


def _shows(sign: str) -> bool:
    return category(sign)[0] != "C" and category(sign) not in ("Zl", "Zp")


def _without(names: Sequence[str], parts: Parts) -> list[str]:
    """Return the command, prefixed by `env` with options that remove these variables."""
    return ["env", *(word for name in names for word in ("-u", name)), *_command(parts)]


def _command(parts: Parts) -> list[str]:
    """Return the command's words for a text file; a placeholder if there is no command, or a word is not
    UTF-8."""
    is_text = all(ord(sign) < 0xD800 or ord(sign) > 0xDFFF for word in parts.command for sign in word)
    return parts.command if parts.command and is_text else ["COMMAND"]


def docker_variables(variables: Mapping[str, str]) -> list[str]:
    """Write lines of a Dockerfile, in which a `$` stays a `$`."""
    values = {name: re.sub(r'(["\\$])', r"\\\1", value) for name, value in variables.items()}
    return [f'ENV {name}="{value}"' for name, value in values.items()]


def container(variables: Mapping[str, str]) -> list[str]:
    """Write the first lines of the YAML to merge into a pod's template."""
    lines = [
        "spec:",
        "  containers:",
        "    - name: CONTAINER  # yours",
        *(["      env:"] if variables else []),
    ]
    for name, value in variables.items():
        lines += [f"        - name: {quoted(name)}", f"          value: {kubernetes_quoted(value)}"]
    return lines


def kubernetes_quoted(value: str) -> str:
    """Write `$$` for each `$`, because Kubernetes would replace `$(NAME)`."""
    return quoted(value.replace("$", "$$"))


def _notes(paragraphs: Sequence[str]) -> list[str]:
    return [line if line != "#" else "" for line in commented(paragraphs)]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def about(
    speedup: float | None, ci: tuple[float, float] | None, objective: str, facts: dict[str, str]
) -> list[str]:
    """List what a recipe gained, and on which machine, one line each."""
    lines = []
    if speedup is not None:
        lines.append(f"Proved: {words.with_interval(speedup, ci)} in {objective}")
    if facts:
        lines.append("on " + ", ".join(f"{name} {words.plain(value)}" for name, value in facts.items()) + ".")
    return lines
