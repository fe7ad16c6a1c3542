"""Turn an untrusted recipe into settings that may be applied on this machine, and check the speed-up that it
states."""

import difflib
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from dynotune import knobs
from dynotune.probe.sources import PYTHON
from dynotune.schema import redaction
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import WITHOUT_ROUNDING, Effect, Scalar
from dynotune.schema.recipe import EFFECTS, LABELS, Outcome, Recipe, proof_of
from dynotune.schema.setting import Setting
from dynotune.text import words

FACTS = {
    "gpu": "gpu.name",
    "gpu_count": "gpu.count",
    "driver": "gpu.driver",
    "torch": "torch.version",
    "cuda": "torch.cuda",
    "python": "python.version",
    "cpu": "host.cpu",
    "num_cores": "host.num_cores",
    "shm_bytes": "host.shm_bytes",
}
"""Map each name in a recipe to the name of the fact that it records."""

MATTERS = [name for name in LABELS if name != "python"]
"""If the machine or the driver differs in one of these, a proof made there says nothing about this
machine."""

# `data/coco.yaml` and `/mnt/imagenet` are paths; `1/2` and `facebook/opt-1.3b` are not.
_PLACE = re.compile(r"(/|\.{1,2}/|~).*|.*/[^/]*\.[A-Za-z]\w{0,5}", re.DOTALL)


class Differs(msgspec.Struct, frozen=True):
    """Describe a difference between this machine and the machine where a recipe was proved.

    Args:
        proved: value on the machine of the proof; "" if not in the recipe. `here`: value here; "" if unknown.
    """

    what: str
    proved: str
    here: str

    def __str__(self) -> str:
        if not self.proved:
            return f"{self.what}: the recipe does not name the one it was proved on"
        return f"{self.what} differs: {self.proved} where it was proved, {self.here or 'none'} here"


# From recipe to settings


def settings(recipe: Recipe, name: str, typed: Sequence[Setting] = ()) -> knobs.Checked:
    """Return the settings to apply (the recipe's, overridden by the user's), and the rejected settings.

    Args:
        name: file name of the recipe, for error messages.

    Raises:
        UsageError: a setting of the recipe has an unknown knob, or a value that its knob does not take.
    """
    given = {setting.knob: setting for setting in typed}
    found = [given.get(knob) or _setting_of(knob, value, name) for knob, value in recipe.settings.items()]
    return knobs.check(found, typed)


def baseline(recipe: Recipe, name: str) -> list[Setting]:
    """Return the baseline that an untrusted recipe was compared with: values of the command's placeholders.

    Raises:
        UsageError: as for `settings`, or only the user may set one of the values.
    """
    pairs = (text.partition("=") for text in recipe.recipe.baseline)
    checked = knobs.check(_setting_of(knob, value, name) for knob, _, value in pairs)
    for setting in checked.left_out:
        raise UsageError(
            f"The recipe {name} was compared with {setting}, which only the user may set: it could name "
            "foreign code.",
            hint=(
                "If you trust it, give the command after two dashes, with the value in place of the "
                "placeholder."
            ),
        )
    return knobs.of_launch(checked.applied)


def not_applied(left_out: Sequence[Setting], name: str) -> list[str]:
    """Return lines that name the unapplied settings of recipe `name`, the reasons, and the text to type."""
    if not left_out:
        return []
    why = (
        f"{words.plain(name)}: not applied: a recipe sets only variables that are known to tune and do "
        "nothing else, "
        "with plain values; another one could make the command load foreign code. If you trust it, type it "
        "yourself:"
    )
    return [why, *(f"  {knobs.how_to_type(setting)}" for setting in left_out)]


def exact(chosen: Sequence[Setting], typed: Sequence[Setting] = ()) -> tuple[list[Setting], list[Setting]]:
    """Divide settings into those that leave results as they are, by the catalogue of knobs, and the others.

    The effect that a recipe states of a setting is not asked: anyone may have edited the recipe.

    Raises:
        UsageError: the user typed one of the others.
    """
    inexact = [setting for setting in chosen if knobs.get(setting.knob).effect not in WITHOUT_ROUNDING]
    for setting in inexact:
        if setting in typed:
            raise UsageError(
                f"--exact forbids {setting}: {_may(setting)}.",
                hint="Remove one of the two options.",
            )
    return [setting for setting in chosen if setting not in inexact], inexact


def not_exact(left_out: Sequence[Setting], name: str) -> list[str]:
    """Return lines that name the settings of recipe `name` that --exact leaves out, and what each may
    change."""
    return [f"{words.plain(name)}: --exact leaves out {setting}: {_may(setting)}" for setting in left_out]


def effects(recipe: Recipe) -> dict[str, Effect]:
    """Map each knob of the recipe to its effect by the catalogue, without knobs that the catalogue does not
    know."""
    found: dict[str, Effect] = {}
    for knob in recipe.settings:
        with suppress(UsageError):
            found[knob] = knobs.get(knob).effect
    return found


def _may(setting: Setting) -> str:
    return EFFECTS[knobs.get(setting.knob).effect]


def problems(recipe: Recipe, name: str) -> dict[str, str]:
    """Map each knob to the reason why its setting is refused, or is applied only if the user types it."""
    found = {}
    for knob, value in recipe.settings.items():
        try:
            setting = _setting_of(knob, value, name)
        except UsageError as error:
            found[knob] = error.message
        else:
            if knobs.must_be_typed(setting):
                found[knob] = " ".join(not_applied([setting], name))
    return found


def _setting_of(knob: str, value: Scalar, name: str) -> Setting:
    """Read one setting of an untrusted recipe without checking it. Raises UsageError as `settings` does."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        setting = knobs.parse(f"{knob}={text}")
    except UsageError as error:
        raise UsageError(f"In the recipe {name}: {error.message}", hint=error.hint) from error
    if setting.knob != knob or not knob.isprintable():
        raise UsageError(f"In the recipe {name}: {knob!r} is no knob.", hint="`dynotune knobs` lists them.")
    if not text.isprintable():
        raise UsageError(
            f"In the recipe {name}: the value of {knob} holds characters that do not print: {text[:100]!r}.",
            hint=f"If you trust it, type it yourself: --set {knob}=…",
        )
    if knobs.get(knob).effect == "system":
        raise UsageError(
            f"The recipe {name} sets {setting}, which changes the machine: dynotune never applies it.",
            hint="`dynotune recipe export --format sysctl` writes what an administrator may apply.",
        )
    return setting


def unproved(recipe: Recipe) -> list[str]:
    """List each setting whose value the recipe does not prove, in a sentence with the value that was
    proved."""
    proved = {proof.knob: proof.value for proof in recipe.proof}
    said = []
    for knob, value in recipe.settings.items():
        if proof_of(recipe, knob) is None:
            other = proved.get(knob)
            why = "no proof belongs to it" if other is None else f"{Setting(knob, other)} is what was proved"
            said.append(f"{Setting(knob, value)} is unproved: {why}")
    return said


# From the recipe's machine to this one


def differences(
    recipe: Recipe, facts: Facts, command: Sequence[str], *, strict: bool = False
) -> list[Differs]:
    """List how this machine and this command differ from machine and command of the recipe's proof.

    Args:
        facts: facts of this machine. A fact that is Unknown here and known in the recipe counts as a
            difference.
        strict: whether to list also facts that the recipe should give and does not give.
    """
    found = [_machine_differs(recipe, facts, name) for name in _relevant(recipe, facts)]
    found.append(command_differs(recipe, command))
    return [differs for differs in found if differs is not None and (differs.proved or strict)]


def _relevant(recipe: Recipe, facts: Facts) -> list[str]:
    """Return the facts to compare. If either machine has no GPU, only the numbers of GPUs are compared."""
    no_gpu = recipe.facts.get("gpu_count") == 0 or facts.get("gpu.count") == 0
    return [name for name in MATTERS if not (no_gpu and name in ("gpu", "driver"))]


def _machine_differs(recipe: Recipe, facts: Facts, name: str) -> Differs | None:
    proved, here = recipe.facts.get(name), facts.get(FACTS[name])
    if proved is None:
        # A build of torch without CUDA has no CUDA version.
        return None if name == "cuda" else Differs(LABELS[name], "", "")
    if isinstance(here, Unknown):
        return Differs(LABELS[name], str(proved), f"unknown ({here.reason})")
    if here is None:
        return Differs(LABELS[name], str(proved), "")
    return None if str(proved) == str(here) else Differs(LABELS[name], str(proved), str(here))


def command_differs(recipe: Recipe, command: Sequence[str]) -> Differs | None:
    """Describe how `command` differs from the recipe's command. Folders and Python's version are ignored.

    `python train.py --data /mnt/a` and `/usr/bin/python3.12 src/train.py --data ~/a` are the same command.
    Other arguments, or the same arguments in another order, make another command.
    """
    there = recipe.recipe.command
    if not there:
        proved = recipe.facts.get("command_hash")
        if proved is None:
            return Differs("command", "", "")
        same = proved == command_hash(command)
        return None if same else Differs("command", "another, kept as its hash alone", " ".join(command))
    old, new = _identity(there), _identity(command)
    there, command = redaction.words(there), redaction.words(command)
    if old == new:
        return None
    spans = [
        span
        for span in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if span[0] != "equal"
    ]
    # Show the preceding word as well: `--batch 32` says more than `32`.
    first = max(0, min(span[1] for span in spans) - 1)
    proved_words = [word for _, begin, end, _, _ in spans for word in there[begin:end]]
    here_words = [word for _, _, _, begin, end in spans for word in command[begin:end]]
    if len(spans) == 1 and first and there[first].startswith("-"):
        proved_words, here_words = [there[first], *proved_words], [there[first], *here_words]
    return Differs("command", " ".join(proved_words) or "nothing", " ".join(here_words) or "nothing")


def command_hash(command: Sequence[str]) -> str:
    """Hash the parts of a command that `command_differs` compares, without secrets; same command, same
    hash."""
    return hashlib.sha256("\0".join(_identity(command)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _identity(command: Sequence[str]) -> list[str]:
    command = redaction.words(command)
    words = [_without_folder(word) if at else _program(word) for at, word in enumerate(command)]
    for at, word in enumerate(command[:-1]):
        if word == "-c":  # the text of a program, not a path
            words[at + 1] = command[at + 1]
    return words


def _program(word: str) -> str:
    name = word.rstrip("/").rpartition("/")[2] or word
    return "python" if PYTHON.fullmatch(name) and name.startswith("python") else name


def _without_folder(word: str) -> str:
    """Turn `--data=/a/b` into `--data=b`."""
    name, equals, rest = word.partition("=")
    if equals and "/" not in name:
        return name + equals + _last_part(rest)
    return _last_part(word)


def _last_part(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word if _PLACE.fullmatch(word) else word


def judge_recipe(recipe: Recipe, comparison: Comparison, *, is_whole: bool = True) -> tuple[Outcome, str]:
    """Return `met`, `not-met` or `undecided`, and the reason.

    If some settings were left out (`is_whole` is false), the comparison can confirm the recipe but not refute
    it.

    Met: the command is faster again, by at least the lower end of the stated interval. If two measurements
    are honest, the second speed-up lies above the lower end of the first interval in 19 of 20 cases or more.
    A new interval that only overlaps the stated interval may be too wide to show anything. Not met: the
    command is not faster, or the new interval lies below the stated one. Undecided: all else. More pairs or a
    quieter machine would decide.
    """
    outcome, reason = _judge(recipe, comparison)
    if outcome != "met" and comparison.verdict == "faster" and recipe.recipe.within:
        reason += (
            " The recipe was proved on steps alone; runs also contain work between steps, such as validation."
        )
    if outcome == "not-met" and not is_whole:
        return "undecided", f"Not all settings of the recipe were applied. {reason}"
    return outcome, reason


def _judge(recipe: Recipe, comparison: Comparison) -> tuple[Outcome, str]:
    if comparison.verdict in ("undecided", None):
        return "undecided", f"Whether the recipe is better was not decided. {comparison.reason}".rstrip()
    if comparison.verdict != "faster" or comparison.speedup is None or comparison.ci is None:
        return "not-met", f"It is not better than the command as it is: {words.answered(comparison)[0]}."
    head = recipe.recipe
    low = head.ci[0] if head.ci is not None else head.speedup
    if low is None:
        return "met", "It is better; the recipe states no speed-up to compare with."
    if comparison.speedup >= low:
        return "met", f"{words.speedup(comparison)} is not below {words.times(low, digits=3)}."
    now = words.interval(comparison.ci)
    if comparison.ci[1] < low:
        return "not-met", f"The new interval, {now}, lies below {words.times(low, digits=3)}."
    return (
        "undecided",
        f"It is better, but {words.speedup(comparison)} is below {words.times(low, digits=3)}; {now}.",
    )
