"""The search for the cycle that a program's events repeat."""

from hypothesis import given
from hypothesis import strategies as st

from dynotune.agent.steps.cycle import CALL, DRAW, REPLAY, STEP, Cycle, Token, find

TOKENS = [
    Token(DRAW, "DataLoader"),
    Token(CALL, "Net", with_grad=True),
    Token(CALL, "Teacher", with_grad=True),
    Token(STEP, "SGD"),
    Token(STEP, "Adam"),
    Token(DRAW, "DataLoader"),
    Token(CALL, "Net"),
    Token(REPLAY, "CUDAGraph"),
]
TRAIN, NET, TEACHER, SGD, ADAM, VAL, EVAL, GRAPH = range(len(TOKENS))
CALLS = [Token(CALL, f"Net{number}") for number in range(12)]


def search(events, tokens=TOKENS, num_optimizers=0, gap_s=0.0, phase=None):
    times = [position * gap_s for position in range(len(events))]
    return find(list(events), times, tokens, num_optimizers, phase)


def period(sequence):
    """The shortest length whose repeats make up the sequence."""
    size = len(sequence)
    return next(p for p in range(1, size + 1) if size % p == 0 and sequence[:p] * (size // p) == sequence)


def is_rotation(one, other):
    return len(one) == len(other) and any(one[k:] + one[:k] == other for k in range(len(one)))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=7),
    st.lists(st.integers(0, 5), max_size=20),
    st.integers(3, 6),
)
def test_a_cycle_is_found_with_its_true_period_after_whatever_came_before(sequence, prefix, repeats):
    prefix = [number for number in prefix if number in sequence]
    true = sequence[: period(sequence)]
    events = prefix + true * repeats
    found = search(events, CALLS)
    shortest = next(p for p in range(1, len(true) + 1) if events[-p:] * 3 == events[-3 * p :])
    if shortest < len(true):  # its own end repeats: more has to be seen, and `Steps` looks again later
        return
    assert found is not None
    assert is_rotation(found.sequence, true)
    assert found.sequence.count(found.anchor) == found.per_step
    assert found.per_step == min(true.count(number) for number in set(true))


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(3, 6), st.integers(0, 11))
def test_a_cycle_of_distinct_things_begins_where_the_program_began_it(order, size, repeats, cut):
    sequence = list(order[:size])
    events = (sequence * (repeats + 1))[: size * repeats + cut % size]
    found = search(events, CALLS)
    assert found is not None
    assert found.sequence == sequence
    assert (found.anchor, found.per_step) == (sequence[-1], 1)


@given(st.integers(1, 6), st.integers(3, 20))
def test_the_optimizer_ends_a_step_of_gradient_accumulation(num_batches, repeats):
    found = search(
        [TRAIN, NET] * num_batches + ([SGD] + [TRAIN, NET] * num_batches) * repeats + [SGD], num_optimizers=1
    )
    assert found is not None
    assert (found.anchor, found.per_step, found.loaders) == (SGD, 1, {TRAIN})
    assert found.sequence == [TRAIN, NET] * num_batches + [SGD]


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_evaluation_in_between_does_not_change_the_cycle_of_training(num_first, num_eval, epochs):
    events = [VAL, EVAL] * num_first
    for num_steps in epochs:
        events += [TRAIN, NET, SGD] * num_steps + [VAL, EVAL] * num_eval
    found = search([*events, *[TRAIN, NET, SGD] * 3], num_optimizers=1)
    assert found is not None
    assert found.sequence == [TRAIN, NET, SGD]
    assert (found.anchor, found.per_step, found.loaders) == (SGD, 1, {TRAIN})


@given(st.integers(3, 30))
def test_evaluation_on_the_training_data_does_not_change_the_cycle(num_eval):
    training = [TRAIN, NET, SGD] * 40
    found = search([*training, *[TRAIN, EVAL] * num_eval, *training], num_optimizers=1)
    assert found is not None
    assert found.sequence == [TRAIN, NET, SGD]


@given(st.integers(3, 40))
def test_repeats_before_an_optimizer_has_stepped_are_not_believed(num_batches):
    assert search([TRAIN, NET] * num_batches, num_optimizers=1) is None


@given(st.integers(3, 30), st.integers(3, 6))
def test_shorter_repeats_inside_a_cycle_do_not_fool_once_every_optimizer_is_known(num_critic, repeats):
    step = [TRAIN, NET, SGD] * num_critic + [TEACHER, ADAM]
    assert search(step[:-2], num_optimizers=2) is None
    assert search(step + step[:-2], num_optimizers=2) is None
    found = search(step * repeats, num_optimizers=2)
    assert found is not None
    assert (found.sequence, found.anchor, found.per_step) == (step, ADAM, 1)


@given(st.integers(10, 60), st.integers(3, 5))
def test_shorter_repeats_do_not_fool_while_something_seen_before_is_missing(num_denoise, repeats):
    encoder, denoiser, decoder = 0, 1, 2
    image = [encoder] + [denoiser] * num_denoise + [decoder]
    assert search(image[:-1], CALLS) is None
    assert search(image + image[:-1], CALLS) is None
    found = search(image * repeats, CALLS)
    assert found is not None
    assert (found.sequence, found.anchor) == (image, decoder)


def test_cycle_is_given_up_when_its_token_was_seen_once_before_a_long_tail():
    assert search([0] + [1] * 255, CALLS) is None
    assert search([0] + [1] * 256, CALLS).sequence == [1]


def test_a_slow_program_need_not_wait_for_a_long_tail():
    assert search([0] + [1] * 12, CALLS, gap_s=1.0) is None
    assert search([0] + [1] * 21, CALLS, gap_s=1.0).sequence == [1]


@given(st.permutations(range(12)), st.integers(0, 12))
def test_nothing_is_found_where_nothing_repeats(order, size):
    assert search(order[:size], CALLS) is None


@given(st.integers(1, 12))
def test_two_repeats_are_not_enough(size):
    assert search(list(range(size)) * 2, CALLS) is None


def test_replays_of_a_captured_graph_end_steps():
    found = search([GRAPH] * 3)
    assert (found.anchor, found.per_step) == (GRAPH, 1)


@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=60), st.integers(0, 3))
def test_cycle_search_gives_a_cycle_of_the_events_or_none(events, num_optimizers):
    found = search(events, num_optimizers=num_optimizers)
    if found is not None:
        assert set(found.sequence) <= set(events)
        assert found.sequence.count(found.anchor) == found.per_step
        assert found.loaders == {number for number in found.sequence if TOKENS[number].kind == DRAW}


def test_parts_of_a_cycle_count_repeats_when_equal_events_follow_each_other():
    cycle = Cycle([TRAIN, NET, NET, NET, SGD], SGD, 1, {TRAIN})
    assert cycle.parts(TOKENS) == [
        {"kind": DRAW, "name": "DataLoader", "num": 1},
        {"kind": CALL, "name": "Net", "num": 3},
        {"kind": STEP, "name": "SGD", "num": 1},
    ]
    assert len(Cycle([0, 1] * 7, 1, 7, set()).parts(CALLS)) == 14


def test_of_a_program_that_trains_and_then_infers_either_phase_has_a_cycle():
    events = [TRAIN, NET, SGD] * 8 + [VAL, EVAL] * 20
    assert search(events, phase="training").sequence == [TRAIN, NET, SGD]
    assert search(events, phase="inference").sequence == [VAL, EVAL]
    # The same loader and model in both: what a draw leads to tells.
    assert search([TRAIN, NET, SGD] * 8 + [EVAL] * 20, phase="inference").sequence == [EVAL]


def test_cycle_of_inference_never_holds_training_however_it_begins():
    accumulates = [TRAIN, NET] * 16 + [SGD]
    assert all(search((accumulates * 3)[:size], phase="inference") is None for size in range(1, 99))


def test_cycle_of_training_is_not_found_when_modules_are_only_called():
    assert search([VAL, EVAL] * 400, phase="training") is None
