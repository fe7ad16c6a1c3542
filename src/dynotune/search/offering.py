"""From what was observed of a program to what is tried on it, here and now."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dynotune.measure.live import refuse_impossible
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Compilation, Observation
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Candidate, NotOffered, Study
from dynotune.search.asked import Asked
from dynotune.search.candidates import Machine, candidates
from dynotune.search.from_facts import named_by_facts
from dynotune.search.present import present


def offered(
    run: RunSpec, study: Study, asked: Asked, observation: Observation, diagnosis: Diagnosis, base: Sequence[Setting]
) -> tuple[list[Candidate], list[NotOffered]]:
    """As `candidates`, of an observation that was made with the settings of `base`."""
    in_environment = {one.knob.removeprefix("env."): str(one.value) for one in base if one.knob.startswith("env.")}
    env = {**run.env, **in_environment}
    processes = [] if isinstance(observation.processes, Unknown) else observation.processes
    machine = Machine(
        facts=study.facts,
        env=env,
        present=present(observation, env) | {one.knob: one.value for one in base},
        num_ranks=max(1, len(processes)),
        compiles=any(isinstance(one.compilation, Compilation) for one in processes),
        refused=refusal(run, study.facts, base),
    )
    by_facts = named_by_facts(observation, machine.present)
    return candidates(diagnosis, machine, asked, objective=study.run.objective, by_facts=by_facts)


def refusal(run: RunSpec, facts: Facts, base: Sequence[Setting] = ()) -> Callable[[Setting], str]:
    """Says of a setting why no run could be launched with it beside `base`; "" where one can."""

    def refused(setting: Setting) -> str:
        try:
            refuse_impossible(run, over(base, [setting]), facts)
        except DynotuneError as error:
            return error.message
        return ""

    return refused


def nothing_to_try(study: Study) -> str:
    """Why there is no candidate, and what would change that."""
    waiting = sorted({word for row in study.not_offered for word in re.findall(r"--allow (\w+)", row.reason)})
    if not study.not_offered:
        return "Nothing to try: no finding names a setting. --try KNOB tries one all the same."
    held = f"Nothing to try: {len(study.not_offered)} settings that findings or facts name are not offered here"
    if waiting:
        return f"{held}; {' '.join(f'--allow {word}' for word in waiting)} widens that."
    reasons = {row.reason for row in study.not_offered}
    return f"{held}: {reasons.pop()}." if len(reasons) == 1 else f"{held}; the report says why."


def to_try(study: Study) -> str:
    """How many candidates there are."""
    num, knobs = len(study.candidates), {candidate.setting.knob for candidate in study.candidates}
    left_out = f"; {len(study.not_offered)} more are not offered" if study.not_offered else ""
    settings = "1 setting" if num == 1 else f"{num} settings of {len(knobs)} {'knob' if len(knobs) == 1 else 'knobs'}"
    return f"To try: {settings}{left_out}."
