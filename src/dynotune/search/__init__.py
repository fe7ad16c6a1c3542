"""Which arms to try, which to drop, and what has earned its place in a recipe.

Everything that decides is given a `Bench` and never launches anything: the same code is run on the user's command and,
in tests and benchmarks, on tables of times. How an arm is launched and timed is `measure`'s; what is worth trying comes
from the findings of `diagnose`.
"""
