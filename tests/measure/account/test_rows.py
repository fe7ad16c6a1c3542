"""The time of a run goes to rows: all of it, each moment once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.records.record import EPOCH, Record, Step
from dynotune.measure.account import account
from dynotune.measure.account.whole_run import priced
from dynotune.schema.account import ACTIVITIES, AccountRow, RunAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.recipe import SCHEMA, Header, Proof, Recipe
from dynotune.schema.setting import Setting

from ...fakes import record, take

DATALOADER = "site-packages/torch/utils/data/dataloader.py"
MODULE = "/lib/site-packages/torch/nn/modules/module.py(1): _call_impl"
FRAMES = [
    "train.py(9): <module>",
    "train.py(31): train",
    "train.py(50): validate",
    "/lib/site-packages/torch/utils/data/dataloader.py(7): __next__",
    MODULE,
    "/lib/site-packages/torch/optim/adam.py(3): step",
    "/lib/site-packages/torch/serialization.py(2): save",
    "/lib/site-packages/tqdm/std.py(2): update",
    "/lib/site-packages/torch/_inductor/graph.py(2): run",
    "/lib/site-packages/unknown/core.py(2): work",
]
OWN = [0, 1, 2]
LOADER, FORWARD, OPTIMIZER, SAVING, LOGGING, VALIDATION, LINES, INDUCTOR = range(8)
STACKS = [[0, 1, 3], [0, 1, 4], [0, 1, 5], [0, 6], [0, 1, 7], [0, 2, 4], [0, 1, 9], [0, 1, 4, 8]]


def made(*seen, step_s=(1.0, 1.0, 1.0, 1.0), begin_s=10.0, evaluates=(), epochs=()) -> Record:
    """A process that was launched at 0, with samples of these stacks, each up to a time.

    `evaluates`: numbers of samples at which the model was in evaluation mode; `epochs`: of steps in which a
    loader was started.
    """
    process = record(step_s, begin_s=begin_s)
    process.steps[:] = [
        Step(step.end_s, 0.0, 1, EPOCH if at in epochs else 0) for at, step in enumerate(process.steps)
    ]
    told = [[end_s, stack, int(at in evaluates)] for at, (end_s, stack) in enumerate(seen)]
    spans(process, ("agent", 0.5, 1.0))
    return take(
        process,
        {"event": "starting_process", "started_s": 0.1},
        {"event": "stacks", "begin_s": 1.0, "frames": FRAMES, "texts": [""] * len(FRAMES), "own": OWN,
         "stacks": STACKS, "seen": told},
    )  # fmt: skip


def spans(process: Record, *told) -> Record:
    for phase, begin_s, end_s, *name in told:
        fields = {"phase": phase, "begin_s": begin_s, "end_s": end_s, "name": "".join(name)}
        take(process, {"event": "span", **fields})
    return process


def exits(process: Record, at_s: float) -> Record:
    return take(process, {"event": "exit", "at_s": at_s})


def accounted(process: Record, ended_s=16.0, **about) -> RunAccount:
    about = {"command": ["train"], "exit_code": 0} | about
    return account([process], 0.0, ended_s, **about)


def took(found: RunAccount) -> dict[tuple[str, str], float]:
    return {(row.part, row.activity): pytest.approx(row.took_s) for row in found.rows}


TIMES = st.floats(0.0, 20.0)
SEEN = st.lists(st.tuples(TIMES, st.integers(0, len(STACKS) - 1)), max_size=20).map(sorted)
PHASES = st.sampled_from(["imports", "weights", "compile", "library_load", "model_build"])


@given(SEEN, st.lists(st.tuples(PHASES, TIMES, TIMES), max_size=8), st.integers(0, 5), st.booleans())
def test_account_sums_to_the_wall_clock_when_spans_and_samples_lie_anywhere(seen, told, num, exited):
    process = spans(made(*seen, step_s=[0.5] * num, epochs=(0, 2), evaluates=(1, 3)), *told)
    found = accounted(exits(process, 15.0) if exited else process)
    assert sum(row.took_s for row in found.rows) == pytest.approx(16.0)
    assert all(row.took_s > 0 and row.activity in ACTIVITIES for row in found.rows)
    assert len({(row.part, row.activity) for row in found.rows}) == len(found.rows)


def test_account_of_a_whole_run():
    process = exits(
        made((9.0, LINES), (10.5, LOADER), (11.0, FORWARD), (11.5, LOADER), (12.0, OPTIMIZER),
             (13.0, VALIDATION), (14.0, LOGGING), (15.0, SAVING)),
        15.5,
    )  # fmt: skip
    spans(process, ("imports", 1.0, 4.0, "torch"), ("imports", 2.0, 2.5, "numpy"), ("weights", 4.0, 6.0))
    found = accounted(process)
    assert took(found) == {
        ("start", "launcher"): 0.1,
        ("start", "interpreter"): 0.4,
        ("start", "agent"): 0.5,
        ("start", "imports"): 3.0,
        ("start", "weights"): 2.0,
        ("start", "own"): 3.0,
        ("start", "loader"): 1.0,
        ("start", "first_batch"): 0.5,
        ("start", "first_step"): 0.5,
        ("steps", "loader"): 0.5,
        ("steps", "optimizer"): 0.5,
        ("between", "validation"): 1.0,
        ("between", "logging"): 1.0,
        ("end", "saving"): 1.0,
        ("unexplained", "unexplained"): 0.5,
        ("end", "process_end"): 0.5,
    }
    (imports,) = [row for row in found.rows if row.activity == "imports"]
    assert [(each.name, each.took_s) for each in imports.details] == [("torch", 2.5), ("numpy", 0.5)]
    (lines,) = [row for row in found.rows if row.activity == "own"]
    assert [each.name for each in lines.details] == ["train.py(31): train"]
    assert (found.num_steps, found.per_thousand_steps_s, found.notes) == (4, 1000.0, [])


def test_account_gives_a_compilation_to_the_compilers_parts_by_what_was_on_the_stack():
    process = spans(made((9.0, INDUCTOR), (12.5, FORWARD)), ("compile", 8.0, 9.5), ("compile", 12.0, 13.5))
    found = took(accounted(process))
    assert found["start", "inductor"] == 1.0
    assert found["start", "dynamo"] == 0.5
    assert found["between", "dynamo"] == 1.5  # nothing was sampled in the last second


def test_account_tells_validation_when_the_model_is_in_evaluation_mode():
    process = made((11.0, FORWARD), (12.0, FORWARD), (13.0, FORWARD), (14.0, OPTIMIZER), evaluates=(1,))
    found = took(accounted(process))
    assert (found["between", "validation"], found["steps", "forward"]) == (1.0, 1.0)


def test_account_leaves_the_mode_out_when_the_program_trains_in_evaluation_mode():
    process = made((11.0, FORWARD), (12.0, FORWARD), (13.0, OPTIMIZER), (14.0, FORWARD), evaluates=(1, 2, 3))
    assert ("between", "validation") not in took(accounted(process))


def test_account_tells_starts_of_epochs_when_a_step_waits_for_the_first_batch():
    process = made((11.0, LOADER), (12.0, LOADER), (13.0, LOADER), (14.0, LOADER), epochs=(2,))
    found = accounted(process)
    assert took(found)["between", "epoch_start"] == 1.0
    assert took(found)["steps", "loader"] == 2.0
    assert (found.num_epochs, found.per_epoch_s) == (1, None)


def test_account_keeps_the_last_moments_unexplained_when_a_signal_ended_the_command():
    found = took(accounted(made((14.0, FORWARD)), exit_code=-9))
    assert found["unexplained", "unexplained"] == 2.0
    assert ("end", "process_end") not in found


def test_account_of_a_program_without_steps_says_so():
    found = accounted(exits(made((14.0, LINES), step_s=()), 15.0))
    assert {row.part for row in found.rows} <= {"start", "unexplained"}
    assert found.notes == ["no step was found, so all of the program counts as its start"]
    assert (found.num_steps, found.per_thousand_steps_s) == (0, None)


def test_account_is_unexplained_when_no_python_was_recorded():
    found = account([], 0.0, 3.0, command=["sh"])
    assert [(row.activity, row.took_s) for row in found.rows] == [("unexplained", 3.0)]


def test_account_names_the_stack_that_was_seen_most_when_nothing_tells_what_it_did():
    process = made()
    take(process, {"event": "stacks", "begin_s": 1.0, "stacks": [[9]], "seen": [[14.0, len(STACKS), 0]]})
    found = accounted(process)
    assert found.unexplained_stack == [FRAMES[9]]
    assert took(found)["unexplained", "unexplained"] == 13.0


def test_account_of_a_diagnosis_ends_where_its_window_begins():
    found = accounted(made((11.0, FORWARD), (14.0, OPTIMIZER)), ended_s=12.5, is_whole=False)
    assert sum(row.took_s for row in found.rows) == pytest.approx(12.5)
    assert (found.num_steps, "end" in {row.part for row in found.rows}) == (2, True)


@pytest.mark.parametrize(
    ("command", "row"),
    [
        (["bash", "-c", "python a.py; sleep 5"], "other_commands"),
        (["bash", "-c", "python a.py"], "process_end"),
        (["/bin/sh", "all.sh"], "other_commands"),
        (["python", "-c", "a; b"], "process_end"),
    ],
)
def test_the_rest_is_other_commands_when_a_shell_goes_on(command, row):
    found = took(accounted(exits(made((14.0, LINES)), 14.0), command=command))
    assert found["end", row] == 2.0
    assert {"other_commands", "process_end"} & {activity for _, activity in found} == {row}


def recipe(objective: str = "throughput") -> Recipe:
    proof = Proof(knob="optimizer.fused", speedup=1.5, ci=(1.4, 1.6), num_pairs=4, effect="numerics")
    header = Header(schema=SCHEMA, objective=objective, speedup=1.5)
    return Recipe(recipe=header, settings={"optimizer.fused": True}, proof=[proof])


FUSED = Setting("optimizer.fused", True)


def run_of_two_epochs() -> RunAccount:
    """Four steps of 1 s, of which a quarter of the time lies between steps."""
    found = accounted(exits(made((10.5, LOADER), (11.0, FORWARD), (13.0, OPTIMIZER), (14.0, SAVING)), 15.0))
    rows = [AccountRow("start", "imports", 10.0), AccountRow("steps", "forward", 3.0)]
    rows += [AccountRow("between", "saving", 1.0), AccountRow("end", "process_end", 2.0)]
    return msgspec.structs.replace(
        found, rows=rows, per_thousand_steps_s=1000.0, per_epoch_s=8.0, num_steps=4, wall_s=16.0
    )


def test_priced_tells_time_and_not_energy_when_the_proof_is_of_time():
    found = priced(run_of_two_epochs(), [FUSED], recipe(), 160.0)
    assert (found.per_thousand_steps_j, found.per_epoch_j) == (10_000.0, 80.0)
    (saved,) = found.saved
    assert (saved.per_thousand_steps_s, saved.per_epoch_s) == (375.0, 3.0)
    assert isinstance(saved.per_thousand_steps_j, Unknown)


def test_priced_tells_energy_and_not_time_when_the_proof_is_of_energy():
    (saved,) = priced(run_of_two_epochs(), [FUSED], recipe("energy"), 160.0).saved
    assert saved.per_thousand_steps_j == 3750.0
    assert isinstance(saved.per_thousand_steps_s, Unknown) and isinstance(saved.per_epoch_s, Unknown)


def test_priced_says_why_when_there_is_no_gpu_or_no_second_epoch():
    run = msgspec.structs.replace(run_of_two_epochs(), per_epoch_s=None)
    found = priced(run, [FUSED], recipe(), Unknown("no GPU is visible"))
    assert found.per_thousand_steps_j == found.energy_j == Unknown("no GPU is visible")
    assert isinstance(found.saved[0].per_epoch_s, Unknown)
    assert isinstance(priced(run, [FUSED], None, 160.0).per_epoch_j, Unknown)


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("latency-p99", [FUSED]),
        ("throughput", []),
        ("throughput", [Setting("optimizer.fused", False)]),
    ],
)
def test_priced_saves_nothing_when_the_recipe_says_nothing_of_this_run(objective, settings):
    assert priced(run_of_two_epochs(), settings, recipe(objective), 160.0).saved == []
