"""Blocks of a history from birth to death, against an allocator whose state is known at each moment."""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.facts import Unknown
from dynotune.trace.snapshot import load_snapshot

from ..snapshot_made import SnapshotMade, stack

LIMIT = 1 << 26
MODULE = "<dynotune module>(7): Net.layers.0"


def lives_of(made, folder):
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(made.data()))
    lives = load_snapshot(path, limit_bytes=LIMIT).get(made.device)
    return Unknown("nothing is held") if lives is None else Unknown(lives.unknown) if lives.unknown else lives


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["alloc", "free", "empty"]), st.integers(1, 30 << 20)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS, kept=st.integers(3, 80), is_expandable=st.booleans())
def test_live_blocks_and_reserved_memory_are_those_of_the_moment(
    tmp_path_factory, actions, kept, is_expandable
):
    made = SnapshotMade(is_expandable=is_expandable)
    alive, states = [], []
    for action, size in [("alloc", 1000), ("alloc", 2000), *actions]:
        if action == "alloc":
            alive.append(made.alloc(size, stack("train.py(3): step")))
        elif action == "free" and alive:
            made.free(alive.pop(size % len(alive)))
        elif action == "empty":
            made.empty_cache()
            continue
        else:
            continue
        states.append((made.active_bytes(), sum(block.size for one in made.segments for block in one.blocks)))
    made.keep_last(kept)
    lives = lives_of(made, tmp_path_factory.mktemp("lives"))
    if isinstance(lives, Unknown):
        return  # too little is left of the history to replay it
    for back, (active, reserved) in enumerate(reversed(states[-lives.num_events :])):
        event = lives.num_events - back
        found, room = lives.room(event)
        assert sum(life.size for life in lives.alive(event)) == active
        assert found == reserved == active + sum(room.values())
        assert min(room.values()) >= 0


def test_the_peak_is_the_highest_level_from_a_moment_on(tmp_path):
    made = SnapshotMade()
    first = made.alloc(10 << 20)
    made.free(first)
    for size in (1 << 20, 2 << 20):
        made.free(made.alloc(size))
    lives = lives_of(made, tmp_path)
    assert lives.peak() == 1
    assert lives.peak(2) == 5


def test_a_module_is_told_by_the_agents_frame_and_is_no_place(tmp_path):
    made = SnapshotMade()
    made.alloc(512, stack("model.py(12): forward", MODULE, "train.py(3): main"))
    made.alloc(512, stack("/env/site-packages/torch/nn/functional.py(1): relu", MODULE, "train.py(3): main"))
    first, second = lives_of(made, tmp_path).lives
    assert (first.module, first.where.function) == ("Net.layers.0", "model.py(12): forward")
    assert (second.module, second.where.function) == ("Net.layers.0", "train.py(3): main")


def test_a_pool_of_its_own_is_counted_whole(tmp_path):
    made = SnapshotMade()
    made.alloc(3 << 20)
    made.free(made.alloc(1 << 20))
    data = made.data()
    data["segments"][0]["segment_pool_id"] = (0, 1)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    lives = load_snapshot(path, limit_bytes=LIMIT)[0]
    reserved, room = lives.room(lives.num_events)
    assert room["graph-pools"] == reserved == 20 << 20
    assert all(map(lives.is_private, lives.lives))


def test_up_to_a_mebibyte_behind_a_large_block_is_the_blocks_own(tmp_path):
    made = SnapshotMade()
    block = (20 << 20) - 4096  # what is left of the segment is not split off
    made.alloc(block)
    data = made.data()
    segment = data["segments"][0]
    segment["blocks"] = [segment["blocks"][0] | {"size": 20 << 20}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    _, room = load_snapshot(path, limit_bytes=LIMIT)[0].room(1)
    assert (room["rounding"], room["fragmentation"], room["cache"]) == (4096, 0, 0)
