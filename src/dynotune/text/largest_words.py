"""Write runs at values of a placeholder, and predictions of them, as progress and reports show them."""

from dynotune.schema.facts import Unknown
from dynotune.schema.largest import LargestValue, Quantity, ValueRun, Verdict
from dynotune.text import words

NAMES: dict[Quantity, str] = {
    "frame-rate": "frames/s",
    "frame-latency-p99": "latency p99",
    "latency-growth": "growth a minute",
    "throughput": "throughput",
    "latency-p99": "step p99",
    "call-latency-p99": "call p99",
    "time-to-first-step": "first step",
    "memory": "memory",
    "energy": "energy",
}
VERDICTS: dict[Verdict, str] = {"holds": "holds", "breaks": "breaks", "open": "open"}


def prediction_in_words(plan: LargestValue) -> str:
    """Write the prediction as `Predicted from 1 and 2 streams: 12, bound by cores. …`."""
    if isinstance(plan.predicted, Unknown):
        return f"Nothing can be predicted: {plan.predicted.reason}."
    small = sorted({run.value for run in plan.runs[:2]})
    first, *others = plan.predicted
    rest = "".join(f" By {bound.name}: {bound.largest}." for bound in others if bound.largest is not None)
    return (
        f"Predicted from {plan.name} = {numbers(small)}: {first.largest}, by {first.name}. {first.why}{rest}"
    )


def run_in_words(run: ValueRun, plan: LargestValue) -> str:
    """Write one run as `streams = 8: 25.0 frames/s, latency p99 21 ms (19 to 24 ms): holds`."""
    if run.failed:
        return words.plain(f"{plan.name} = {run.value}: failed. {run.failed}")
    if run.cut_off:
        return words.plain(f"{plan.name} = {run.value}: open. {run.cut_off}")
    values = [f"{NAMES[one.quantity]} {value(one.quantity, one.value)}" for one in run.measured]
    shown = ", ".join(values)
    return words.plain(f"{plan.name} = {run.value}: {shown}: {VERDICTS[run.verdict(plan.limits)]}")


def value(quantity: Quantity, number: float) -> str:
    """Write a value or a bound of a quantity, with its unit."""
    match quantity:
        case "frame-rate" | "throughput":
            return words.rate(number)
        case "memory":
            return words.num_bytes(number)
        case "energy":
            return f"{number:.3g} J"
        case "latency-growth":
            return words.change(number)
        case _:
            return words.duration(number)


def numbers(values: list[int]) -> str:
    """Write whole numbers as `1, 2 and 8`."""
    texts = [str(value) for value in values]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) if texts else "no value"
