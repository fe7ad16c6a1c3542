"""Which arms to try, in which order, and which settings have earned a place in a recipe.

Here: the candidates (from a diagnosis, facts and the user's words), the four stages of a search, the bench that runs
arms of the user's command, and the study as a whole (`tune`). Not here: how an arm is launched and timed, and what
pairs say (`measure`); what a finding is (`doctor`); reading and checking recipes (`recipes`).
The stages are given a `Bench` and launch nothing: in tests and benchmarks they run on tables of times.
"""

from dynotune.search import tune
from dynotune.search.tune import RECIPE, REPORT, TuneRequest

__all__ = ["RECIPE", "REPORT", "TuneRequest", "tune"]
