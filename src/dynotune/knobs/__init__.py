"""The catalogue of knobs, data in catalogue.toml: this room sets nothing and does not import torch.

`catalogue` finds knobs; `setting_text` turns text into settings; `conditions` lists the conditions of knobs
on the machine, and `applicability` tells whether a setting can work there; `foreign` decides which settings
from elsewhere may be applied. A knob's site names where a setting acts; `launch` and the agent apply the
setting.
"""

from dynotune.knobs.applicability import DoesNotApply, caution, check_applies, needs_workers
from dynotune.knobs.catalogue import all_knobs, get, of_launch, why_not_switched
from dynotune.knobs.foreign import (
    Allowed,
    Checked,
    allow_list,
    check,
    check_variables,
    how_to_type,
    must_be_typed,
)
from dynotune.knobs.setting_text import parse, parse_all

__all__ = [
    "Allowed",
    "Checked",
    "DoesNotApply",
    "all_knobs",
    "allow_list",
    "caution",
    "check",
    "check_applies",
    "check_variables",
    "get",
    "how_to_type",
    "must_be_typed",
    "needs_workers",
    "of_launch",
    "parse",
    "parse_all",
    "why_not_switched",
]
