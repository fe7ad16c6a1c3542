"""`transfer.non_blocking` where there is no GPU: everything must be as without it."""


def test_copies_that_do_not_reach_the_gpu_are_as_before(child):
    done = child(
        """
        import torch
        x = torch.arange(4.0)
        out["to"] = [str(x.to(torch.float64).dtype), x.to("cpu") is x, x.to(device="cpu", copy=True) is x]
        out["other"] = str(x.to(torch.ones(1, dtype=torch.int32)).dtype)
        out["copy"] = torch.zeros(4).copy_(x).tolist()
        out["module"] = str(next(torch.nn.Linear(1, 1).to(torch.float64).parameters()).dtype)
        for call in (lambda: x.to("nonsense"), lambda: x.to(), lambda: x.copy_()):
            try:
                call()
            except Exception as error:
                out.setdefault("errors", []).append(type(error).__name__)
        """,
        "transfer.non_blocking=true",
    )
    assert done.out["to"] == ["torch.float64", True, False]
    assert done.out["other"] == "torch.int32"
    assert done.out["copy"] == [0, 1, 2, 3]
    assert done.out["module"] == "torch.float64"
    assert len(done.out["errors"]) >= 2
    assert done.readback["transfer.non_blocking"]["ok"] is False
    assert "pin_memory" in done.readback["transfer.non_blocking"]["detail"]


def test_compiled_code_traces_through_it_as_one_graph_and_does_not_recompile(child):
    done = child(
        """
        import torch
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph)
            return graph
        @torch.compile(backend=backend, fullgraph=True)
        def f(x, y):
            y.copy_(x)
            return x.to(torch.float64).to("cpu", torch.float32) + torch.Tensor.to(y, torch.float32)
        out["values"] = f(torch.ones(3), torch.zeros(3)).tolist()
        torch._dynamo.config.error_on_recompile = True
        f(torch.ones(3), torch.zeros(3))
        out["graphs"] = len(graphs)
        """,
        "transfer.non_blocking=true",
    )
    assert done.out == {"values": [2, 2, 2], "graphs": 1}


def test_torchscript_and_tensor_subclasses_still_work(child):
    done = child(
        """
        import torch
        @torch.jit.script
        def f(x):
            return x.to(torch.float64)
        class Own(torch.Tensor):
            pass
        out["types"] = [str(f(torch.ones(2)).dtype), type(Own([1.0]).to("cpu")).__name__]
        """,
        "transfer.non_blocking=true",
    )
    assert done.out == {"types": ["torch.float64", "Own"]}


def test_exceptions_of_a_signal_handler_reach_the_program_when_raised_during_a_transfer(child):
    done = child(
        """
        import os, signal, torch
        class Stopped(Exception):
            pass
        def stop(number, frame):
            raise Stopped
        signal.signal(signal.SIGUSR2, stop)
        class Target:
            def __getattr__(self, name):
                os.kill(os.getpid(), signal.SIGUSR2)
                raise AttributeError(name)
        try:
            torch.ones(1).to(Target())
        except Exception as error:
            out["raised"] = type(error).__name__
        """,
        "transfer.non_blocking=true",
    )
    assert done.out == {"raised": "Stopped"}
