"""Settings whose effect only a GPU shows. Needs torch 2.11 or newer with CUDA."""

import pytest

pytestmark = pytest.mark.gpu

CONV = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)).cuda()
x = torch.randn(4, 3, 32, 32, device="cuda")
"""


def ok(done):
    assert done.errors() == []
    assert {knob: answer["ok"] for knob, answer in done.readback.items()} == dict.fromkeys(
        done.readback, True
    ), done.readback


def test_copies_from_pinned_memory_are_made_non_blocking_and_arrive_whole(child):
    done = child(
        """
        import torch
        source = torch.arange(1 << 22, dtype=torch.float32).pin_memory()
        pageable = torch.arange(16.0)
        copies = [
            source.to("cuda"), source.to(torch.device("cuda", 0), torch.float64), source.cuda(), source.to(0),
            source.to(torch.ones(1, device="cuda")), source.to(device="cuda", non_blocking=False),
            torch.empty_like(source, device="cuda").copy_(source), pageable.cuda(),
        ]
        torch.cuda.synchronize()
        out["equal"] = all(torch.equal(c.cpu().float(), source if len(c) > 16 else pageable) for c in copies)
        back = copies[0].to("cpu")
        out["back"] = torch.equal(back, source)
        """,
        "transfer.non_blocking=true",
    )
    assert done.out == {"equal": True, "back": True}
    assert done.readback["transfer.non_blocking"]["detail"] == "7 copies"
    ok(done)


def test_the_wait_for_the_copy_is_gone(child):
    # Asked of the profiler, not of a clock: a blocking copy waits for its stream.
    program = """
        import torch
        source = torch.ones(1 << 20).pin_memory()
        source.cuda()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(5):
                source.to("cuda")
        out["waits"] = sum(e.count for e in profile.key_averages() if e.key == "cudaStreamSynchronize")
        """
    assert child(program).out["waits"] >= 5
    assert child(program, "transfer.non_blocking=true").out["waits"] < 5


def test_loader_batches_are_pinned_and_copied_without_waiting(child):
    done = child(
        """
        import torch
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, 8)
        batches = [batch for (batch,) in loader]
        out["pinned"] = all(batch.is_pinned() for batch in batches)
        out["sum"] = float(sum(batch.cuda().sum() for batch in batches))
        """,
        "loader.pin_memory=true",
        "loader.num_workers=2",
        "transfer.non_blocking=true",
    )
    assert done.out == {"pinned": True, "sum": 2016.0}
    ok(done)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("known", [True, False])
def test_allocator_keys_reach_the_gpus_allocator(child, name, known):
    import torch

    done = child(
        """
        import torch
        x = torch.zeros(1 << 20, device="cuda")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        out["expandable"] = bool(settings["expandable_segments"])
        out["threshold"] = float(settings["garbage_collection_threshold"])
        """,
        "alloc.expandable_segments=true",
        env={name: "garbage_collection_threshold:0.5"},
        facts={"torch.version": torch.__version__} if known else {},
    )
    assert done.out == {"expandable": True, "threshold": 0.5}
    ok(done)


def test_autocast_uses_half_precision_kernels_and_trains(child):
    done = child(
        CONV
        + """
seen = []
net[2].register_forward_hook(lambda module, args, output: seen.append(str(output.dtype)))
y = net(x)
y.sum().backward()
out["dtypes"] = [seen[0], str(y.dtype), str(net[0].weight.grad.dtype)]
""",
        "precision.autocast=bf16",
        "layout.channels_last=true",
        "cudnn.benchmark=true",
    )
    assert done.out == {"dtypes": ["torch.bfloat16", "torch.float32", "torch.float32"]}
    ok(done)


def test_fp16_trains_with_the_programs_scaler_and_is_refused_without(child):
    program = (
        CONV
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled={enabled})
scaler.scale(net(x).sum()).backward()
scaler.step(optimizer)
scaler.update()
"""
    )
    ok(child(program.replace("{enabled}", "True"), "precision.autocast=fp16", "optimizer.fused=true"))
    done = child(program.replace("{enabled}", "False"), "precision.autocast=fp16")
    assert done.readback["precision.autocast"]["ok"] is False
    assert "GradScaler" in done.readback["precision.autocast"]["detail"]


def test_an_optimizer_taken_back_from_fused_still_has_its_gradients_unscaled(child):
    done = child(
        """
        import torch
        model = torch.nn.Embedding(8, 2, sparse=True, device="cuda")
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        scaler.scale(model(torch.tensor([1], device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        out["moved"] = (before - model.weight).abs().max().item()
        """,
        "optimizer.fused=true",
    )
    assert abs(done.out["moved"] - 1.0) < 1e-4
    assert "sparse" in done.readback["optimizer.fused"]["detail"]


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_products_change_in_their_last_digits_and_no_more(child, precision):
    done = child(
        """
        import torch
        a = torch.randn(512, 512, device="cuda")
        error = (a @ a - (a.double() @ a.double())).abs().max().item()
        out["error"] = error
        """,
        f"matmul.fp32_precision={precision}",
    )
    assert 1e-3 < done.out["error"] < 5
    ok(done)


def test_reduce_overhead_replays_graphs_in_place(child):
    done = child(
        CONV
        + """
with torch.no_grad():
    expected = [float(y.sum()) for y in [torch.nn.Sequential.forward(net, x)]]
    for _ in range(4):
        y = net(x)
    out["close"] = abs(float(y.sum()) - expected[0]) < 1e-1 * max(1, abs(expected[0]))
""",
        "compile.mode=reduce-overhead",
    )
    assert done.out == {"close": True}
    ok(done)


def test_a_variable_kept_unset_is_unset_for_cublas(child):
    done = child(
        """
        import os, torch
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        a = torch.ones(8, 8, device="cuda")
        out["product"] = float((a @ a)[0, 0])
        out["own"] = os.environ["CUBLAS_WORKSPACE_CONFIG"]
        """,
        "env.CUBLAS_WORKSPACE_CONFIG=@unset",
    )
    assert done.out == {"product": 8.0, "own": ":4096:8"}
    ok(done)
