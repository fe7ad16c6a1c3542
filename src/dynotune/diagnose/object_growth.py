"""Count which objects of Python a program leaves behind with each step, if its memory grows."""

from __future__ import annotations

from dynotune.doctor import ObservationView, examine
from dynotune.measure.live import TaskRunner
from dynotune.schema.events import ObjectsCounted
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import GrownObjects, Observation
from dynotune.schema.task import CountObjects

NUM_STEPS = 20
LIMIT_S = 60.0
LEAK = "leak-graph-kept"


def counted(runner: TaskRunner, observation: Observation) -> GrownObjects | Unknown:
    """Count objects in the observed program, whose live run goes on afterwards; Unknown, with the reason, if
    not."""
    findings, _ = examine(ObservationView(observation), "program")
    if not any(finding.id == LEAK for finding in findings):
        return Unknown("the memory of the program does not grow")
    if not runner.goes_on or runner.live is None:
        return Unknown("the program had ended")
    answer = runner.live.do(CountObjects(num_steps=NUM_STEPS), limit_s=LIMIT_S)
    found = answer.all(ObjectsCounted)
    if not found:
        return Unknown(answer.reason or "the program had ended")
    return GrownObjects(num_steps=found[0].num_steps, grown=found[0].grown)
