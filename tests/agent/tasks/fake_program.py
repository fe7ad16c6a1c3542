"""As much of the running program as tasks ask of it."""

from types import SimpleNamespace

from dynotune.agent.core.program import Program


def fake_program(torch, *, folder="", world_size=1, **steps):
    """A program whose events and errors are kept in `events` and `errors`."""
    events, errors = [], []
    program = Program(str(folder), events.append, lambda where, error: errors.append(error))
    program.torch, program.events, program.errors = torch, events, errors
    program.steps = SimpleNamespace(
        **{
            "num_samples": 0,
            "num_uncounted": 0,
            "wait_s": 0.0,
            "optimizers": [],
            "epoch_steps": None,
            "num_loaders": 1,
            **steps,
        }
    )
    program.steps.counts = lambda key: key == "loader"
    program.roots = SimpleNamespace(around=None, alive=list)
    program.ranks = lambda: {"rank": 0, "world_size": world_size} if world_size > 1 else {}
    return program
