"""From a study to its recipe, and from an untrusted recipe to settings that may be applied here."""

from __future__ import annotations

import datetime
import difflib
import hashlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dynotune import knobs
from dynotune.probe.interpreter import PYTHON
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Scalar
from dynotune.schema.recipe import SCHEMA, Header, Proof, Recipe, proof_of
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import without
from dynotune.search.layout import ERROR

if TYPE_CHECKING:
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.study import Study

__all__ = [
    "Differs",
    "command_differs",
    "command_hash",
    "differences",
    "facts_to_keep",
    "of",
    "setting_of",
    "settings",
    "unproved",
]

MOST_LOG = 50.0
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
"""Names in a recipe, and those of the facts that they hold."""

MATTERS = {
    "gpu_count": "number of GPUs",
    "gpu": "GPU",
    "driver": "driver",
    "torch": "torch",
    "cuda": "CUDA of torch",
    "cpu": "processor",
    "num_cores": "number of usable cores",
}
"""Where one of these differs, a proof says nothing: the machine of a comparison, and the driver. The name in words."""

# `data/coco.yaml` and `/mnt/imagenet` are places; `1/2` and `facebook/opt-1.3b` are not.
_PLACE = re.compile(r"(/|\.{1,2}/|~).*|.*/[^/]*\.[A-Za-z]\w{0,5}", re.DOTALL)


class Differs(msgspec.Struct, frozen=True):
    """What is not here as it was where a recipe was proved.

    Args:
        proved: there; "" where the recipe does not say. `here`: "" where there is none.
    """

    what: str
    proved: str
    here: str

    def __str__(self) -> str:
        if not self.proved:
            return f"{self.what}: the recipe does not say on which it was proved"
        return f"{self.what} differs: {self.proved} where it was proved, {self.here or 'none'} here"


# From a study


def of(study: Study) -> Recipe:
    """What `study` proved.

    Raises:
        UsageError: it proved nothing.
    """
    confirmed, chosen = study.confirmed, study.recipe
    if not chosen or confirmed is None or confirmed.verdict != "faster" or not confirmed.speedup or not confirmed.ci:
        raise UsageError("Nothing was proved: there is no recipe to write.")
    head = Header(
        schema=SCHEMA,
        created=_created(study),
        command=study.command,
        objective=study.objective,
        speedup=confirmed.speedup,
        ci=confirmed.ci,
        num_pairs=confirmed.num_pairs,
        step_on=study.step_on,
        caches=study.caches,
        study=study.id,
    )
    proofs = {setting.knob: _proof(study, setting, confirmed) for setting in chosen}
    if study.began_from is not None:
        first = study.began_from.recipe
        if not _holds(first, study):
            head = replace(head, speedup=None, ci=None, num_pairs=None)
        else:
            head = _times(head, first.recipe)
            proofs = {proof.knob: proof for proof in first.proof} | proofs
    chosen = sorted(over(study.base, chosen), key=lambda setting: setting.knob)
    return Recipe(
        head,
        settings={setting.knob: setting.value for setting in chosen},
        proof=[proofs[setting.knob] for setting in chosen if setting.knob in proofs],
        facts=facts_to_keep(study.facts, study.command),
        about={setting.knob: knobs.get(setting.knob).doc for setting in chosen},
    )


def _holds(first: Recipe, study: Study) -> bool:
    """Whether what a recipe states was proved here, on this command, and of the settings that it has now."""
    head = first.recipe
    told = (head.objective, head.caches, head.step_on) == (study.objective, study.caches, study.step_on)
    whole = {proof.knob for proof in first.proof} == set(first.settings) and not unproved(first)
    return told and whole and not differences(first, study.facts, study.command, strict=True)


def _times(head: Header, first: Header) -> Header:
    """The gain of one on top of the other's; unknown where the first one states none."""
    gains = [_as_logs(one) for one in (first, head)]
    known = [gain for gain in gains if gain is not None]
    if len(known) < 2:
        return replace(head, speedup=None, ci=None, num_pairs=None)
    log = math.fsum(gain[1] for gain in known)
    # Both were measured apart from each other, so their errors add as squares.
    below, above = (math.hypot(*(gain[1] - gain[end] for gain in known)) for end in (0, 2))
    return replace(head, speedup=math.exp(log), ci=(math.exp(log - below), math.exp(log + above)), num_pairs=None)


def _as_logs(head: Header) -> tuple[float, float, float] | None:
    """The lower end, the speed-up and the upper end; None where they are not told, or beyond all reason."""
    if head.speedup is None or head.ci is None:
        return None
    low, middle, high = (math.log(ratio) for ratio in (head.ci[0], head.speedup, head.ci[1]))
    return (low, middle, high) if max(map(abs, (low, middle, high))) < MOST_LOG else None


def facts_to_keep(facts: Facts, command: Sequence[str]) -> dict[str, Scalar]:
    """Of these facts, what a recipe tells; what is unknown or none is left out."""
    kept: dict[str, Scalar] = {}
    for name, fact in FACTS.items():
        found = facts.get(fact)
        if isinstance(found, bool | int | float | str):
            kept[name] = found
    return {**kept, "command_hash": command_hash(command)}


def _created(study: Study) -> str:
    ended = [sitting.ended or sitting.began for sitting in study.sittings]
    return ended[-1] if ended else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _proof(study: Study, setting: Setting, confirmed: Comparison) -> Proof:
    """By the ablation; by the confirmation where it is the only setting, or none was ablated.

    Of one setting on top of a recipe, the confirmation leaves just that one out.
    """
    effect = next((each.effect for each in study.candidates if each.setting == setting), None)
    effect = effect or knobs.get(setting.knob).effect
    found = _ablated(study, setting)
    if found is not None:
        speedup, ci, num_blocks, too = found
        return Proof(
            setting.knob, speedup, ci, num_blocks, effect, by="ablation", value=setting.value, left_out_too=too
        )  # fmt: skip
    assert confirmed.speedup is not None and confirmed.ci is not None
    return Proof(
        setting.knob, confirmed.speedup, confirmed.ci, confirmed.num_pairs, effect,
        by="ablation" if study.base and study.recipe == [setting] else "confirmation", value=setting.value,
    )  # fmt: skip


def _ablated(study: Study, setting: Setting) -> tuple[float, tuple[float, float], int, list[str]] | None:
    """What the whole is worth over all but this setting, from the last ablation that tells.

    Last, the knobs that were left out with it.
    """
    needing = [one for one in study.candidates if str(setting) in one.needs]
    for estimate in reversed(study.estimates):
        # Of a round that did not let it stay, nothing is a proof.
        if estimate.phase != "ablate" or estimate.ci is None or (estimate.p is not None and estimate.p > ERROR):
            continue
        low, high = estimate.ci
        if without(estimate.arm, str(setting), study.candidates) == estimate.against:
            too = [one.setting.knob for one in needing if without(estimate.arm, one.id, ()) is not None]
            return estimate.speedup, (low, high), estimate.num_blocks, too
        if without(estimate.against, str(setting), study.candidates) == estimate.arm:
            too = [one.setting.knob for one in needing if without(estimate.against, one.id, ()) is not None]
            return 1 / estimate.speedup, (1 / high, 1 / low), estimate.num_blocks, too
    return None


# To settings


def settings(recipe: Recipe, name: str) -> list[Setting]:
    """The settings of an untrusted recipe, each as if it had been typed; `name` stands in the error.

    Raises:
        UsageError: one of them is unknown, of a wrong value, or could load foreign code.
    """
    return [setting_of(knob, value, name) for knob, value in recipe.settings.items()]


def setting_of(knob: str, value: Scalar, name: str) -> Setting:
    """One setting of an untrusted recipe; UsageError as `settings`."""
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
            hint=f"If you trust it, take it out of the recipe and give it yourself: --set {knob}=…",
        )
    if knobs.loads_code(setting):
        raise UsageError(
            f"The recipe {name} sets {setting}: that can make the command load foreign code or settings.",
            hint=f"If you trust it, take it out of the recipe and give it yourself: --set {knob}=…",
        )
    if knobs.get(knob).effect == "system":
        raise UsageError(
            f"The recipe {name} sets {setting}, which changes the machine: dynotune never applies it.",
            hint="`dynotune recipe export --format sysctl` writes what an administrator may apply.",
        )
    return setting


def unproved(recipe: Recipe) -> list[str]:
    """Settings that the recipe has no proof for, each with the value that was proved, in a sentence."""
    proved = {proof.knob: proof.value for proof in recipe.proof}
    said = []
    for knob, value in recipe.settings.items():
        if proof_of(recipe, knob) is None:
            other = proved.get(knob)
            why = "no proof belongs to it" if other is None else f"{Setting(knob, other)} is what was proved"
            said.append(f"{Setting(knob, value)} is unproved: {why}")
    return said


# Here and there


def differences(recipe: Recipe, facts: Facts, command: Sequence[str], *, strict: bool = False) -> list[Differs]:
    """In what this machine and this command are not those that `recipe` was proved on.

    Args:
        facts: of here; what is Unknown here and known there differs.
        strict: name also what the recipe ought to say and does not.
    """
    found = [_machine_differs(recipe, facts, name) for name in _relevant(recipe, facts)]
    found.append(command_differs(recipe, command))
    return [differs for differs in found if differs is not None and (differs.proved or strict)]


def _relevant(recipe: Recipe, facts: Facts) -> list[str]:
    """Where there was no GPU, or is none, their number says it all."""
    no_gpu = recipe.facts.get("gpu_count") == 0 or facts.get("gpu.count") == 0
    return [name for name in MATTERS if not (no_gpu and name in ("gpu", "driver"))]


def _machine_differs(recipe: Recipe, facts: Facts, name: str) -> Differs | None:
    proved, here = recipe.facts.get(name), facts.get(FACTS[name])
    if proved is None:
        # A build of torch without CUDA has none to tell.
        return None if name == "cuda" else Differs(MATTERS[name], "", "")
    if isinstance(here, Unknown):
        return Differs(MATTERS[name], str(proved), f"unknown ({here.reason})")
    if here is None:
        return Differs(MATTERS[name], str(proved), "")
    return None if str(proved) == str(here) else Differs(MATTERS[name], str(proved), str(here))


def command_differs(recipe: Recipe, command: Sequence[str]) -> Differs | None:
    """In what `command` is another than the recipe's. Folders do not count, and neither does Python's version.

    `python train.py --data /mnt/a` and `/usr/bin/python3.12 src/train.py --data ~/a` are the same; other arguments, or
    another order of them, are not.
    """
    there = recipe.recipe.command
    if not there:
        proved = recipe.facts.get("command_hash")
        if proved is None:
            return Differs("command", "", "")
        same = proved == command_hash(command)
        return None if same else Differs("command", "another, kept as its hash alone", " ".join(command))
    old, new = _identity(there), _identity(command)
    if old == new:
        return None
    spans = [
        span for span in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if span[0] != "equal"
    ]
    # With the word before: `--batch 32` says more than `32`.
    first = max(0, min(span[1] for span in spans) - 1)
    proved_words = [word for _, begin, end, _, _ in spans for word in there[begin:end]]
    here_words = [word for _, _, _, begin, end in spans for word in command[begin:end]]
    if len(spans) == 1 and first and there[first].startswith("-"):
        proved_words, here_words = [there[first], *proved_words], [there[first], *here_words]
    return Differs("command", " ".join(proved_words) or "nothing", " ".join(here_words) or "nothing")


def command_hash(command: Sequence[str]) -> str:
    """Of what counts of a command: the same for two that `command_differs` holds for one."""
    return hashlib.sha256("\0".join(_identity(command)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _identity(command: Sequence[str]) -> list[str]:
    words = [_without_folder(word) if at else _program(word) for at, word in enumerate(command)]
    for at, word in enumerate(command[:-1]):
        if word == "-c":  # a program's text, not a place
            words[at + 1] = command[at + 1]
    return words


def _program(word: str) -> str:
    name = word.rstrip("/").rpartition("/")[2] or word
    return "python" if PYTHON.fullmatch(name) and name.startswith("python") else name


def _without_folder(word: str) -> str:
    """`--data=/a/b` is `--data=b`."""
    name, equals, rest = word.partition("=")
    if equals and "/" not in name:
        return name + equals + _last_part(rest)
    return _last_part(word)


def _last_part(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word if _PLACE.fullmatch(word) else word
