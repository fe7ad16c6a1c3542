"""What is predicted from small runs, and what is said to bind in a run that broke a limit."""

import pytest

from dynotune.schema.facts import Unknown
from dynotune.schema.largest import Limit, Measured, ValueRun
from dynotune.schema.serving import Serving
from dynotune.search import serving_bounds

GIB = 2**30


def run(value, *, rate=24.0, failed="", **fields) -> ValueRun:
    serving = Serving(**{"source": "threads", "num_streams": value, "frames_per_s": 25.0 * value, **fields})
    measured = [Measured(quantity="frame-rate", value=rate, low=rate, high=rate)]
    return ValueRun(value=value, run="", measured=[] if failed else measured, failed=failed, serving=serving)


def predicted(*runs, limits=(), fps=25.0, facts=None):
    found = serving_bounds.predicted(runs, limits, fps, facts or {})
    return {bound.name: bound.largest for bound in found}


def test_cores_bound_the_streams_when_a_frame_takes_cpu_time():
    assert predicted(run(1, cpu_s=0.01, num_cores=8)) == {"cores": 32}


def test_cores_of_other_programs_are_left_out_when_a_bound_is_predicted():
    assert predicted(run(1, cpu_s=0.01, num_cores=8, free_cores=2.0)) == {"cores": 8}
    assert predicted(run(1, cpu_s=0.01, num_cores=4, free_cores=24.0)) == {"cores": 16}


def test_no_bound_is_below_the_value_that_ran():
    assert predicted(run(6, cpu_s=0.01, num_cores=8, free_cores=1.0)) == {"cores": 6}


def test_prediction_is_of_the_largest_value_when_runs_are_in_another_order():
    small, large = run(1, cpu_s=0.01, num_cores=8), run(8, cpu_s=0.02, num_cores=8)
    assert predicted(large, small) == {"cores": 16}


def test_device_bounds_the_streams_when_it_works_for_a_frame():
    assert predicted(run(1, cpu_s=0.001, num_cores=8, device_share=0.05)) == {"cores": 320, "device": 20}


def test_thread_bounds_the_streams_when_it_calls_the_model_for_several():
    serving = {"num_threads": 1, "call_s": 0.004, "between_cpu_s": 0.001}
    assert predicted(run(2, **serving)) == {"thread": 8}
    assert predicted(run(2, **serving, further_sample_s=0.001)) == {"thread": 20}
    assert isinstance(serving_bounds.predicted([run(1, **serving)], [], 25.0, {}), Unknown)


def test_memory_bounds_the_streams_when_each_takes_some():
    first = run(1, device_bytes=3 * GIB, device_total_bytes=23 * GIB, weights_bytes=2 * GIB)
    second = run(2, device_bytes=4 * GIB, device_total_bytes=23 * GIB, weights_bytes=2 * GIB)
    assert predicted(first, second) == {"memory": 21}
    assert predicted(first, second, limits=[Limit("memory", 10 * GIB)]) == {"memory": 8}


def test_host_memory_bounds_the_streams_when_there_is_no_device():
    facts = {"host.memory_bytes": 16 * GIB}
    assert predicted(run(1, host_bytes=1 * GIB), run(2, host_bytes=2 * GIB), facts=facts) == {"memory": 16}


@pytest.mark.parametrize("fps", [None, 25.0])
def test_nothing_is_predicted_when_nothing_is_known_of_a_frame(fps):
    assert isinstance(serving_bounds.predicted([run(1)], [], fps, {}), Unknown)


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"device_share": 0.97}, "device", "97% of the time"),
        ({"cores": 7.8, "num_cores": 8.0}, "cores", "7.8 of 8 cores"),
        (
            {
                "num_threads": 1,
                "busiest_thread": 0.99,
                "num_cores": 8.0,
                "call_s": 0.001,
                "between_cpu_s": 0.004,
            },
            "thread",
            "outside the model",
        ),
        (
            {"num_threads": 1, "call_share": 0.95, "num_cores": 8.0, "call_s": 0.004},
            "thread",
            "most of it in the model",
        ),
        ({"num_threads": 9, "process_cores": 1.02, "num_cores": 8.0}, "interpreter lock", "take turns"),
        (
            {
                "num_threads": 9,
                "call_share": 0.99,
                "calls_at_once": 1.0,
                "num_cores": 8.0,
                "process_cores": 0.2,
            },
            "lock",
            "9 threads",
        ),
        ({"num_threads": 9, "cores": 2.0, "num_cores": 8.0}, "unknown", "2.0 of 8 cores"),
    ],
)
def test_binding_names_the_part_when_it_is_used_up(fields, name, words):
    bound = serving_bounds.binding([run(9, **fields)], [Limit("frame-rate", 24.75)])
    assert bound.name == name
    assert words in bound.why


def test_binding_is_memory_when_the_command_ran_out_of_it():
    assert serving_bounds.binding([run(9, failed="CUDA out of memory.")], []).name == "memory"
    assert serving_bounds.binding([run(9, failed="The command failed.")], []).name == "failure"
