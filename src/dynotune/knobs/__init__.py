"""The catalogue of knobs, data in catalogue.toml: nothing is set from here, and no torch is imported.

`catalogue` finds knobs and turns text into settings; `foreign` says which settings from elsewhere may be applied;
`conditions` holds what a knob may ask of the machine. Where a setting acts is said in its site; carrying it out is the
work of `launch` and of the agent.
"""

from dynotune.knobs.catalogue import (
    all_knobs,
    caution,
    check_applies,
    get,
    of_launch,
    parse,
    parse_all,
    why_not_switched,
)
from dynotune.knobs.foreign import Checked, check, check_variables, how_to_type, must_be_typed

__all__ = [
    "Checked",
    "all_knobs",
    "caution",
    "check",
    "check_applies",
    "check_variables",
    "get",
    "how_to_type",
    "must_be_typed",
    "of_launch",
    "parse",
    "parse_all",
    "why_not_switched",
]
