"""Rules on machines, given facts of any kind: each judges, or says what is missing; none fails."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.claims import all_claims
from dynotune.doctor import ObservationView, all_rules, examine, seen_here
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation

from .machines import BUSY, NOBODY, RECORDED, WINDOW, alone, h200
from .observations import attribution, observed

NAMES = sorted(msgspec.json.decode(RECORDED.read_bytes())) + sorted(WINDOW)
NUMBERS = st.one_of(st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from(["", "0", "1", "powersave", "never", "always", ":0:0", "-1", "x y", "9.0", "rocm"]),
    st.lists(
        st.sampled_from([0, 1, 99, "gpu-idle", "sw-thermal 0.5", "sw-thermal x", "sm_90", "compute_"]),
        max_size=4,
    ),
    st.just(NOBODY),
)


@pytest.mark.parametrize("state", [{}, BUSY, WINDOW], ids=["idle", "busy", "watched"])
@given(changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
def test_no_rule_fails_whatever_the_facts_are(state, changes):
    facts = h200(state | changes)
    for observation in (alone(facts), observed(facts=facts, attributed=attribution(host=0.3))):
        seen = ObservationView(observation)
        findings, unknown = examine(seen, "machine")
        assert all(finding.id in all_rules() for finding in findings)
        assert all(0 <= finding.share <= 1 for finding in findings if not isinstance(finding.share, Unknown))
        assert all(each.missing and each.reason for each in unknown)
        list(seen_here(seen, all_claims()))


def test_a_machine_that_tells_nothing_has_no_findings_and_every_rule_says_why():
    facts = {name: value if name.startswith("env.") else NOBODY for name, value in h200().items()}
    findings, unknown = examine(ObservationView(alone(facts)), "machine")
    assert findings == []
    judged_without = {id_ for id_ in all_rules() if all_rules()[id_].scope == "machine"} - {
        each.id for each in unknown
    }
    # These look at variables alone, and none is set; nothing is swapped on, or limited, that is not known to
    # be.
    assert all(all_rules()[id_].family.startswith(("environment", "startup")) for id_ in judged_without)


def test_nothing_asked_is_nothing_found():
    assert examine(ObservationView(Observation()), "machine")[0] == []
