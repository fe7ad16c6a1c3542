"""Phases: work that only some steps do, such as a validation after every hundredth step."""

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.periodic_work import is_librarys, keeps_outputs, periodic, seen, when
from dynotune.schema.trace_summary import Place

_KEEPS_OUTPUTS = """\
Do not keep the outputs of all batches: most of the validation joins them to those before. Reduce each batch to what \
the metric needs (argmax, sums, counts; with Transformers' Trainer, preprocess_logits_for_metrics), or collect batches \
in a list and join them once."""  # noqa: E501


@rule(family="phases")
def validation_often(view: ObservationView) -> Judgements:
    for work in periodic(view, "validation"):
        yield Judgement(
            claim=f"Validation takes {work.share:.0%} of the time{when(work)}.",
            share=work.share,
            evidence=[
                *seen(view, work),
                *([f"most of it at {kept}"] if (kept := keeps_outputs(view, work)) else []),
            ],
            where=Place(function=work.function),
            remedy=_KEEPS_OUTPUTS if kept else "",
        )


@rule(family="phases")
def periodic_work(view: ObservationView) -> Judgements:
    for work in periodic(view, "other"):
        text = f"`{work.text}`" if work.text else work.function
        much = work.share >= policy.MUCH_OF_SOME_STEPS and not is_librarys(work)
        yield Judgement(
            # Whether it must be that frequent cannot be seen: reinforcement learning learns from what the
            # model plays.
            severity=policy.severity(work.share) if much else "low",
            claim=f"{text} takes {work.share:.0%} of the time{when(work)}.",
            share=work.share,
            evidence=seen(view, work),
            where=Place(function=work.function),
        )
