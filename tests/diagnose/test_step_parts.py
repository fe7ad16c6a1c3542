"""Parts of a step, rescaled to the length of an unrecorded step."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.step_parts import Parts, plain_parts

seconds = st.floats(0, 1)
parts = st.builds(Parts, **dict.fromkeys(Parts.__struct_fields__, seconds))


@given(parts, st.floats(1e-6, 10), seconds)
def test_parts_sum_to_the_step_and_the_devices_own_time_comes_first(seen, step_s, wait_s):
    plain = plain_parts(seen, step_s, wait_s, most_wait_s=2 * wait_s, garbage_s=0.1)
    assert sum(msgspec.structs.astuple(plain)) == pytest.approx(step_s)
    assert all(part >= 0 for part in msgspec.structs.astuple(plain))
    assert plain.busy == pytest.approx(min(seen.busy, step_s))
    assert plain.loader <= 2 * wait_s + 1e-9
    assert plain.host + plain.late <= seen.host + seen.late + 1e-9
    assert plain.garbage <= 0.1
    if plain.unseen > 1e-9:
        assert plain.loader == pytest.approx(max(2 * wait_s, min(wait_s, plain.loader)))
        assert plain.garbage == pytest.approx(0.1)
    if plain.busy + plain.queued + plain.loader + plain.sync < step_s - 1e-9:
        assert plain.sync == pytest.approx(seen.sync)


@given(parts, st.floats(1e-6, 10), seconds, st.floats(0, 1))
def test_a_longer_step_gives_no_part_less(seen, step_s, wait_s, longer):
    before, after = (msgspec.structs.astuple(plain_parts(seen, s, wait_s)) for s in (step_s, step_s + longer))
    assert all(b <= a + 1e-9 for b, a in zip(before, after, strict=True))
