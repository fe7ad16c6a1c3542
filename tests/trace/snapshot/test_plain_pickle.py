"""Pickles of strangers: data is loaded, everything else is refused before any of it has run."""

import os
import pickle
import pickletools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.errors import UsageError
from dynotune.trace.snapshot import plain_pickle

HARMLESS = {
    *(
        "PROTO",
        "FRAME",
        "STOP",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
    ),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "MARK"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
}


def load(raw):
    return plain_pickle.load(raw, name="memory.pickle")


integers = st.integers(-(1 << 63), (1 << 64) - 1)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | st.text(max_size=300)
plain = st.recursive(
    scalars
    | st.tuples(integers)
    | st.tuples(integers, integers)
    | st.tuples(integers, integers, integers)
    | st.just(()),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@settings(max_examples=150, deadline=None)
@given(data=plain, protocol=st.integers(2, 5))
def test_plain_data_comes_back_as_it_was(data, protocol):
    assert load(pickle.dumps(data, protocol=protocol)) == data


def test_plain_pickle_keeps_one_list_when_it_stands_in_many_places():
    shared = [{"line": 1}]
    found = load(pickle.dumps([shared, shared]))
    assert found[0] is found[1]


def test_strings_and_memos_of_every_width_are_read():
    data = {"short": "a", "long": "b" * 70_000, "many": [f"string {number}" for number in range(70_000)]}
    for protocol in (2, 4):
        assert load(pickle.dumps([data, data["many"]], protocol=protocol)) == [data, data["many"]]


def test_plain_pickle_does_not_read_beyond_its_end():
    assert load(pickle.dumps([1], protocol=4) + b"cos\nsystem\n") == [1]


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir])
def test_a_hostile_pickle_runs_nothing(tmp_path, protocol, function):
    trace = tmp_path / "was-here"
    code = {os.system: f"mkdir {trace}", os.mkdir: str(trace)}.get(
        function, f"__import__('os').mkdir({str(trace)!r})"
    )
    raw = pickle.dumps({"segments": [], "device_traces": [[Attack(function, code)]]}, protocol=protocol)
    with pytest.raises(UsageError):
        load(raw)
    assert not trace.exists()
    # It is a real attack: pickle itself falls for it.
    pickle.loads(raw)
    assert trace.exists()


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("GLOBAL", b"cos\nsystem\n(S'true'\ntR."),
        ("GLOBAL", b"}q\x00(X\x01\x00\x00\x00acos\nsystem\nq\x01h\x01h\x01u."),
        ("STACK_GLOBAL", b"\x8c\x02os\x94\x8c\x06system\x94\x93\x94."),
        ("REDUCE", b"))R."),
        ("BUILD", b"}}b."),
        ("INST", b"(ios\nsystem\n."),
        ("OBJ", b"(No."),
        ("NEWOBJ", b")N\x81."),
        ("NEWOBJ_EX", b"N)}\x92."),
        ("EXT1", b"\x82\x01."),
        ("EXT2", b"\x83\x01\x00."),
        ("EXT4", b"\x84\x01\x00\x00\x00."),
        ("PERSID", b"Pid\n."),
        ("BINPERSID", b"NQ."),
        ("NEXT_BUFFER", b"\x97."),
        ("READONLY_BUFFER", b"N\x98."),
        ("BINBYTES8", b"\x8e\x00\x00\x00\x00\x00\x01\x00\x00."),
        ("BYTEARRAY8", b"\x96\x00\x00\x00\x00\x00\x01\x00\x00."),
        ("EMPTY_SET", b"\x8f."),
        ("DUP", b"]2a."),
        ("LONG4", b"\x8b\x00\x00\x00\x7f."),
        ("LONG1", b"\x8a\x0a" + bytes(10) + b"."),
        ("PUT", b"Np999999999999\n."),
        # A tuple of a tuple: the hash of a deep one overflows the stack of C.
        ("TUPLE1", b")\x85."),
        ("TUPLE2", b"K\x01]\x86."),
        ("TUPLE", b"(K\x01K\x02K\x03K\x04t."),
    ],
)
@pytest.mark.parametrize("before", [b"", b"]q\x05K\x01", b"\x95\x03\x00\x00\x00\x00\x00\x00\x00"])
def test_an_instruction_that_can_do_more_than_hold_data_is_refused_by_name(name, program, before):
    with pytest.raises(UsageError, match=rf"the instruction {name} at byte \d+") as raised:
        load(b"\x80\x04" + before + program)
    assert raised.value.message.startswith("memory.pickle holds more than plain data")


def test_every_other_instruction_is_refused():
    for operation in pickletools.opcodes:
        raw = b"\x80\x04" + operation.code.encode("latin1") + b"0" * 20
        if operation.name in HARMLESS:
            continue
        with pytest.raises(UsageError, match=f"the instruction {operation.name} at byte 2"):
            load(raw)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    body=st.lists(
        st.sampled_from([o.code.encode("latin1") for o in pickletools.opcodes]) | st.binary(max_size=3)
    )
)
def test_plain_pickle_check_lets_only_harmless_instructions_through(body):
    raw = b"\x80\x04" + b"".join(body) + b"."
    try:
        end = plain_pickle._check(raw, "x")
    except UsageError:
        return
    # genops itself chokes on operands that pickle would refuse too.
    found = []
    try:
        found.extend(operation.name for operation, _, _ in pickletools.genops(raw[:end]))
    except (ValueError, OverflowError):
        return
    assert set(found) <= HARMLESS


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_pickle_is_data_or_refused_and_never_breaks_the_reader(changes):
    raw = bytearray(
        pickle.dumps({"a": [1, 2.5, None, (3, 4)], "b": {"c": "text" * 9}, "d": [1 << 60, True]}, protocol=4)
    )
    for at, value in changes:
        raw[at % len(raw)] = value
    try:
        load(bytes(raw))
    except UsageError as error:
        assert error.message.startswith("memory.pickle")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "does not begin as a pickle"),
        (b"\x80", "does not begin as a pickle"),
        (b"PK\x03\x04 a file of torch.save", "does not begin as a pickle"),
        (b"\x1f\x8b a file of gzip", "does not begin as a pickle"),
        (b"{'json': 1}", "does not begin as a pickle"),
        (pickle.dumps([1], protocol=0), "does not begin as a pickle"),
        (b"\x80\x06N.", "does not begin as a pickle of protocol 2 to 5"),
        (b"\x80\x04]", "cut short"),
        (b"\x80\x04X\xff\xff\xff\x7f.", "a string at byte 2 is longer than the file"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b".", "a string at byte 2 is longer than the file"),
        (b"\x80\x04]K", "cut short: an instruction at byte 3 is longer than the file"),
        (b"\x80\x04]J\x01\x02", "cut short: an instruction at byte 3 is longer than the file"),
        (b"\x80\x04]\x8a\x05\x01", "cut short: an instruction at byte 3 is longer than the file"),
        (b"\x80\x04\xff", "no instruction"),
        (b"\x80\x04.", "damaged"),
        (b"\x80\x04h\x07.", "damaged"),
        (b"\x80\x04]}s.", "damaged"),
        (b"\x80\x04}]Ns.", "damaged"),
        (b"\x80\x04NNa.", "damaged"),
        (b"\x80\x04u.", "damaged"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "damaged"),
        (b"\x80\x04\x8c\x02\xff\xff.", "damaged"),
        (b"\x80\x04r\xff\xff\xff\xff.", "LONG_BINPUT"),
        (b"\x80\x04" + b"]" * 100_000 + b".", "more containers than data of its size can fill"),
        (b"\x80\x04" + b"}" * 100_000 + b".", "more containers than data of its size can fill"),
    ],
    ids=range(25),
)
def test_plain_pickle_refuses_bytes_that_are_none(raw, says):
    with pytest.raises(UsageError, match=says):
        load(raw)


NUM = 30_000
# The most memory that each kind of instruction can take for its bytes.
BOMBS = {
    "memo": b"(" + b"N\x94" * NUM,
    "large memo": b"Nr" + NUM.to_bytes(4, "little") + b"N" * NUM,
    "integers": b"](" + b"J\xff\xff\xff\x7f" * NUM + b"e",
    "small integers": b"](" + b"K\x01" * NUM + b"e",
    "strings": b"](" + b"\x8c\x02ab" * NUM + b"e",
    "marks": b"(" * NUM + b"N",
    "lists": b"](" + (b"]" + b"N" * 12) * (NUM // 10) + b"e",
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS.keys())
def test_memory_stays_within_fifty_times_the_file(body):
    raw = b"\x80\x04" + body + b"."
    tracemalloc.start()
    try:
        load(raw)
    except UsageError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 50 * len(raw)


def test_lists_as_deep_as_a_file_can_hold_are_loaded_and_dropped():
    depth = 100_000
    found = load(b"\x80\x04" + b"](NNNNNNNN" * depth + b"e" * depth + b".")
    assert len(found) == 9
    del found
