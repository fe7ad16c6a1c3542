"""From facts to findings: the rules, and what decides how much a finding weighs.

`examine(seen, scope)` asks every rule. A rule is a pure function of `Seen`: it launches nothing, reads no file
and asks no clock. `explain` and the docs are made from the rules' docstrings. `folklore` knows popular remedies
that are none, `differences` in what two machines differ. Thresholds stand in `policy`.

How facts come about is not here: `probe` asks the machine, `diagnose` watches a command.
"""

from dynotune.doctor.differences import differences
from dynotune.doctor.explain import explain, explained
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import Rule, all_rules, examine, rule

__all__ = ["Missing", "Rule", "Seen", "all_rules", "differences", "examine", "explain", "explained", "rule"]
