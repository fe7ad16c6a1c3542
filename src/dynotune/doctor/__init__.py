"""From facts to findings: the rules, and the policy that weighs findings.

`examine(view, scope)` asks every rule. A rule is a pure function of an `ObservationView`: it launches
nothing, reads no file and asks no clock. `@rule` declares its texts and its candidate settings; `explain` and
the docs are made from these. `claims` finds advice by word, finding and trace, `differences` compares two
machines, and `policy` holds the thresholds.

Other rooms collect the facts: `probe` asks the machine, `diagnose` watches a command.
"""

from dynotune.doctor.bounds import bound_of_compiling
from dynotune.doctor.claims import seen_here
from dynotune.doctor.declaration import Judgement, Rule, rule
from dynotune.doctor.explanations import explain, explained
from dynotune.doctor.families import FAMILIES, Family
from dynotune.doctor.machine_differences import differences
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.registry import all_rules, examine

__all__ = [
    "FAMILIES",
    "Family",
    "Judgement",
    "Missing",
    "ObservationView",
    "Rule",
    "all_rules",
    "bound_of_compiling",
    "differences",
    "examine",
    "explain",
    "explained",
    "policy",
    "rule",
    "seen_here",
]
