"""Name the program's own option where it has one for what a finding asks for.

Options are recognised by their names, which the knob's entry in the catalogue lists, and only where their
present value fits what was observed. A help text alone never makes an option one; it can rule one out.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dynotune import knobs
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.diagnosis import Finding, OwnOption
from dynotune.schema.knob import Scalar
from dynotune.schema.program_options import OptionMeaning, ProgramOption
from dynotune.schema.setting import Setting

_NO = re.compile(r"no[_-]")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_OFF = (False, 0, "ieee", "0")
"""Values of settings that switch something off."""
_OTHERS = re.compile(
    r"\b(servers?|downloads?|preprocess\w*|tokeni\w+|evaluat\w+|validation|test)\b", re.IGNORECASE
)
"""Words of a help text that rule an option of workers or batches out: it is of another part than the
steps."""
_LETTER = "j"
"""The letter for workers. Its help, or another spelling of the option, must name them."""


def with_option(view: ObservationView, finding: Finding, of_finding: OptionMeaning | None) -> Finding:
    """Return the finding; if the program has an option for it, with that option, also as a sentence of the
    remedy. `of_finding`: how an option is recognised that does what the finding asks for."""
    options = or_else(lambda: view.process.options, [])
    found = next(_offers(view, finding, of_finding, options), None) if options else None
    if found is None:
        return finding
    remedy = " ".join(filter(None, [finding.remedy, told(found)]))
    return msgspec.structs.replace(finding, remedy=remedy, option=found)


def told(option: OwnOption) -> str:
    now = "" if option.now is None else f", now {option.now}"
    if option.leave_out:
        return f"The program has an option for this: leave out `{option.name}`."
    if option.value is None:
        return f"The program has an option for this: give `{option.name}` a larger value{now}."
    return f"The program has an option for this: `{' '.join(option.words)}`{now}."


def _offers(
    view: ObservationView,
    finding: Finding,
    of_finding: OptionMeaning | None,
    options: Iterable[ProgramOption],
) -> Iterator[OwnOption]:
    for setting in finding.candidates:
        meaning = knobs.get(setting.knob).own_option
        for option in options if meaning is not None else ():
            assert meaning is not None
            if (found := _for_setting(view, setting, meaning, option)) is not None:
                yield found
    for option in options if of_finding is not None else ():
        assert of_finding is not None
        if (found := _for_finding(of_finding, option)) is not None:
            yield found


def _for_setting(
    view: ObservationView, setting: Setting, meaning: OptionMeaning, option: ProgramOption
) -> OwnOption | None:
    if meaning.kind != "number":
        return _switched(meaning, option) if (setting.value not in _OFF) is meaning.on else None
    if not is_named(option, meaning.names) or not _is_observed(view, setting.knob, option.value):
        return None
    return None if _OTHERS.search(option.help) else _with_value(option, str(setting.value))


def _for_finding(meaning: OptionMeaning, option: ProgramOption) -> OwnOption | None:
    if meaning.kind == "switch":
        return _switched(meaning, option)
    is_number = option.value is not None and re.fullmatch(r"[0-9]+(\.[0-9]+)?", option.value) is not None
    if not is_number or not is_named(option, meaning.names) or option.const is not None:
        return None
    return OwnOption(name=option.name, value=None, now=option.value)


def is_named(option: ProgramOption, names: Iterable[str]) -> bool:
    """Tell whether one of the option's spellings is among the names; a letter must be explained by the
    help."""
    plain = [plain_name(flag) for flag in option.flags]
    if set(names) & set(plain):
        return True
    return (
        _LETTER in plain and "workers" in names and re.search(r"\bworkers\b", option.help, re.I) is not None
    )


def plain_name(flag: str) -> str:
    """Return an option's name as the table has names: `--num-workers` and `loader.num_workers` are
    `num_workers`."""
    return flag.lstrip("-").rpartition(".")[2].replace("-", "_").lower()


def _is_observed(view: ObservationView, knob: str, value: str | None) -> bool:
    """Tell whether a loader of the steps has this value, so that the option is the one that sets it."""
    field = knob.rpartition(".")[2]
    seen = {getattr(loader, field, None) for loader in or_else(lambda: view.loaders, [])}
    return value is not None and value in {str(one) for one in seen if one is not None}


def _switched(meaning: OptionMeaning, option: ProgramOption) -> OwnOption | None:
    """Return the option as it must be given, if it is a switch that is not yet as wanted, or a choice."""
    if set(meaning.choice_names) & set(map(plain_name, option.flags)):
        wanted = next((value for value in meaning.wanted if value in option.choices), None)
        is_so = option.value in meaning.wanted
        return None if wanted is None or is_so else _with_value(option, wanted)
    negated = [flag for flag in option.flags if _NO.match(flag.lstrip("-"))]
    positive = [flag for flag in option.flags if flag not in negated]
    if set(meaning.names) & set(map(plain_name, positive)):
        is_so = _is_on(option.value) in (None, meaning.on)
        return None if is_so else _positive(meaning, option, negated)
    if not set(meaning.names) & {plain_name(flag)[len("no_") :] for flag in negated} or option.const is None:
        return None
    # The switch `--no-amp` alone was typed if its value is that of a typed one.
    is_typed = option.value == option.const
    if is_typed is not meaning.on:
        return None
    return OwnOption(
        name=option.name, words=[] if is_typed else [option.name], now=option.value, leave_out=is_typed
    )


def _positive(meaning: OptionMeaning, option: ProgramOption, negated: Sequence[str]) -> OwnOption | None:
    if option.const is None:
        value = _alike(option.value or "", meaning.on)
        return (
            None
            if value is None or (option.choices and value not in option.choices)
            else _with_value(option, value)
        )
    if meaning.on:
        return OwnOption(name=option.name, value=option.const, words=[option.name], now=option.value)
    if negated:
        return OwnOption(name=negated[0], value="False", words=[negated[0]], now=option.value)
    # A switch that is on without having been typed cannot be left out.
    is_typed = not _is_on(option.default)
    return OwnOption(name=option.name, now=option.value, leave_out=True) if is_typed else None


def _is_on(value: str | None) -> bool | None:
    lowered = (value or "false").lower()
    return True if lowered in _TRUE else False if lowered in _FALSE else None


def _alike(now: str, wanted: bool) -> str | None:
    """Write a switch's value as the present one, such as `True` for `False`; None if that is no value of a
    switch."""
    pairs = [
        (true, false) for true, false in zip(_TRUE, _FALSE, strict=False) if now.lower() in (true, false)
    ]
    if not pairs:
        return None
    value = pairs[0][0] if wanted else pairs[0][1]
    return value.capitalize() if now[:1].isupper() else value


def _with_value(option: ProgramOption, value: Scalar) -> OwnOption:
    is_flag = option.name.startswith("-")
    words = [option.name, str(value)] if is_flag else [f"{option.name}={value}"]
    return OwnOption(name=option.name, value=str(value), words=words, now=option.value)
