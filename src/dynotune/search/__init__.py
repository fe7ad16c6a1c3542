"""Search for settings: which arms to run, in which order, and which settings belong in a recipe.

Here: the candidates (from a diagnosis, facts and the user's requests), the four stages of a search, the bench
that runs arms of the user's command, and the study as a whole (`tune`). Elsewhere: launching and timing arms
and judging pairs (`measure`); findings (`doctor`); reading and checking recipes (`recipes`). The stages get a
`StudyBench` and launch nothing themselves: in tests and benchmarks they run on tables of times.

`planning` finds the largest value of a placeholder that holds limits, with the pure search of `largest`, and
`serving_bounds` says what binds it.
"""

from dynotune.search import planning, tune
from dynotune.search.tune import RECIPE, REPORT, TuneRequest

__all__ = ["RECIPE", "REPORT", "TuneRequest", "planning", "tune"]
