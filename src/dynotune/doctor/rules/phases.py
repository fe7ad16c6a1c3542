"""Phases: what some steps do beside what all do, as a validation after every hundredth."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.phases import is_librarys, periodic, seen, when
from dynotune.schema.trace_summary import Place

_JITTERS = ("epoch-jitter", "alloc-jitter", "loader-jitter", "gc-jitter")


@rule(
    title="The model is validated often.",
    sees="in some steps, and in no others, the thread of the steps was seen in a function that validates, by its name "
    "or its file's. Under another name it is work of some steps.",
    costs="its part of the window, at most what these steps took beyond a usual one.",
    wrong_when="the whole run validates more rarely than the timed window, or the result is needed that often.",
    explains=_JITTERS,
)
def validation_often(view: ObservationView) -> Judgements:
    for work in periodic(view, "validation"):
        yield Judgement(
            claim=f"Validation takes {work.share:.0%} of the time{when(work)}.",
            share=work.share,
            evidence=seen(view, work),
            where=Place(function=work.function),
            remedy="Validate more rarely, or on a part of the data; larger batches without gradients are faster, too.",
        )


@rule(
    title="Some steps do more than the others.",
    sees="in some steps alone, the thread of the steps was seen at a line of the program, and these steps take longer. "
    "Validations, checkpoints and begins of epochs count for other rules.",
    costs="its part of the window, at most what these steps took beyond a usual one. The severity is low below a "
    "quarter, and inside a library: a call that all steps make has more to do in some.",
    wrong_when="the work is needed that often, or the whole run does it more rarely than the window that was timed.",
    explains=_JITTERS,
)
def periodic_work(view: ObservationView) -> Judgements:
    for work in periodic(view, "other"):
        text = f"`{work.text}`" if work.text else work.function
        much = work.share >= policy.MUCH_OF_SOME_STEPS and not is_librarys(work)
        yield Judgement(
            # Whether it need be that often, nobody sees: what a reinforced model plays is what it learns from.
            severity=policy.severity(work.share) if much else "low",
            claim=f"{text} takes {work.share:.0%} of the time{when(work)}.",
            share=work.share,
            evidence=seen(view, work),
            where=Place(function=work.function),
            remedy="Do it more rarely, or in a thread or process beside the loop.",
        )
