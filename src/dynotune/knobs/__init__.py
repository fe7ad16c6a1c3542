"""The catalogue of knobs, data in catalogue.toml: this room sets nothing and does not import torch.

`catalogue` finds knobs, turns text into settings, and lists the conditions of knobs on the machine; `foreign` decides
which settings from elsewhere may be applied. A knob's site names where a setting acts; `launch` and the
agent apply the setting.
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
