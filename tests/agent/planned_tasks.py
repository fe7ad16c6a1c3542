"""Tasks as they stand in a plan."""


def window_task(at_step, num_steps):
    return {"type": "time-window", "at_step": at_step, "num_steps": num_steps}


def trace_task(at_step, num_steps, **options):
    return {"type": "record-trace", "at_step": at_step, "num_steps": num_steps, "most_s": 60.0, **options}
