"""Programs with faults of kernels, precision, compilation, many processes and the environment; the clean
programs."""

from .fault import Fault

TWO_RANKS = ("torchrun", "--standalone", "--nproc-per-node=2")
ONE_RANK = ("torchrun", "--standalone", "--nproc-per-node=1")
WHOLE = "a flag: the fault is whole or absent, and the cost on a GPU is an estimate"
NO_COST = "one more walk over the graph a step: its cost was below what could be measured"

FAULTS: tuple[Fault, ...] = (
    # Host and launches
    Fault("host-bound", "host_bound.py", ("cpu", "cuda"), (10, 30, 60)),
    Fault(
        "python-elementwise-loops",
        "python_loops.py",
        ("cpu",),
        (10, 30, 60),
        implies=("host-bound",),
        notes="a Python loop over rows is host work by its nature",
    ),
    Fault(
        "python-elementwise-loops",
        "python_loops.py",
        ("cuda",),
        (10, 30, 60),
        implies=("host-bound", "launch-bound"),
        notes="each row is a few tiny kernels",
    ),
    Fault(
        "launch-bound",
        "launch_bound.py",
        ("cuda",),
        (10, 30, 60),
        implies=("host-bound", "python-elementwise-loops"),
        notes="a module a column, each a few tiny kernels, called in a Python loop",
    ),
    Fault(
        "small-operators",
        "time_steps.py",
        ("cpu",),
        (30, 60),
        implies=("host-bound", "optimizer-forloop"),
        notes="a cell called for each time step, beside a unit that takes the whole sequence",
    ),
    Fault(
        "validation-often",
        "validation_joins.py",
        ("cpu",),
        (60,),
        notes="most of the validation joins outputs; the twin never validates",
    ),
    # Serving of streams
    *(
        Fault(
            id_,
            "streams.py",
            ("cpu",),
            (60,),
            args=("--fault", id_),
            kind="inference",
            notes="a flag: the fault is whole or absent; the twin serves batches from one thread",
        )
        for id_ in (
            "model-shared-by-threads",
            "stream-per-thread",
            "model-per-request",
            "frames-queue",
            "frame-sizes-unequal",
            "frames-decoded-in-step",
            "letterbox-on-cpu",
        )
    ),
    # Environment
    Fault(
        "no-memory-caching-on",
        "no_memory_caching.py",
        ("cuda",),
        (30,),
        env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        notes=WHOLE,
    ),
    Fault(
        "launch-blocking-on",
        "launch_blocking.py",
        ("cuda",),
        (30,),
        env={"CUDA_LAUNCH_BLOCKING": "1"},
        notes=WHOLE,
    ),
    Fault(
        "cublas-env-regex",
        "cublas_env.py",
        ("cuda",),
        (60,),
        env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        implies=("launch-bound", "host-bound"),
        kind="inference",
        notes=(
            "small linear layers wait for the host with and without the variable: launch-bound holds at "
            "dose 0 too"
        ),
    ),
    Fault(
        "ul-cublas-env-on-construct",
        "ul_cublas_env.py",
        ("cuda",),
        (60,),
        implies=("cublas-env-regex", "launch-bound", "host-bound"),
        kind="inference",
        notes=(
            "the folder ultralytics beside the program stands in for the package; launch-bound holds at "
            "dose 0 too"
        ),
    ),
    Fault(
        "caches-disabled",
        "caches_disabled.py",
        ("cpu", "cuda"),
        (1,),
        env={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        implies=("graph-breaks",),
        notes="costs at the start, not by the step; of its nn.Sequential.compile() torch compiles nothing",
    ),
    Fault(
        "debug-flags-left-on",
        "distributed_debug.py",
        ("cpu",),
        (60,),
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        launcher=TWO_RANKS,
        notes=(
            "a flag; gradients are exchanged by hand, since DDP crashes under DETAIL on the CPU (torch "
            "2.13.0)"
        ),
    ),
    Fault(
        "debug-flags-left-on",
        "distributed_debug.py",
        ("cuda-x2",),
        (30,),
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        launcher=TWO_RANKS,
        notes=WHOLE,
    ),
    # Convolutions and determinism
    Fault("cudnn-benchmark-off", "cudnn_benchmark_off.py", ("cuda",), (10,), notes=WHOLE),
    Fault(
        "cudnn-benchmark-dynamic",
        "cudnn_benchmark_dynamic.py",
        ("cuda",),
        (60,),
        args=("--blocks", "12"),
        notes=WHOLE,
    ),
    Fault(
        "cudnn-benchmark-dynamic",
        "cudnn_benchmark_dynamic.py",
        ("cuda",),
        (30,),
        args=("--blocks", "48"),
        notes=WHOLE,
    ),
    Fault("cudnn-deterministic-on", "cudnn_deterministic.py", ("cuda",), (10,), notes=WHOLE),
    Fault("deterministic-algos-on", "deterministic_algorithms.py", ("cuda",), (30,), notes=WHOLE),
    Fault("channels-last", "channels_last.py", ("cuda",), (30,), notes=WHOLE),
    # Attention and precision
    Fault("sdpa-math", "sdpa_math.py", ("cuda",), (10, 30, 60), notes="the dial is blocks, by estimate"),
    Fault(
        "manual-attention",
        "manual_attention.py",
        ("cuda",),
        (10, 30, 60),
        notes="the dial is blocks, by estimate",
    ),
    Fault("fp32-matmul-no-tf32", "fp32_matmul.py", ("cuda",), (30,), args=("--heads", "1"), notes=WHOLE),
    Fault("fp32-matmul-no-tf32", "fp32_matmul.py", ("cuda",), (60,), args=("--heads", "5"), notes=WHOLE),
    Fault("amp-absent", "amp_absent.py", ("cuda",), (30,), notes=WHOLE),
    Fault("amp-fp16-no-scaler", "amp_fp16_no_scaler.py", ("cuda",), (1,), notes="a fault of correctness"),
    Fault("scaler-with-bf16", "scaler_with_bf16.py", ("cuda",), (1,), notes="needless rather than slow"),
    Fault(
        "gemm-misaligned", "gemm_misaligned.py", ("cuda",), (10, 30), notes="the dial is blocks, by estimate"
    ),
    # Compilation
    Fault("graph-breaks", "graph_breaks.py", ("cpu", "cuda"), (10, 30), kind="inference"),
    Fault("recompiles", "recompiles.py", ("cpu", "cuda"), (10, 30)),
    Fault(
        "cudagraph-skipped",
        "cudagraph_skipped.py",
        ("cuda",),
        (60,),
        implies=("launch-bound", "host-bound"),
        kind="inference",
        notes="one token a step, one to three ms: without graphs it waits for the host by its nature",
    ),
    # Inference
    Fault("inference-mode-absent", "inference_mode_absent.py", ("cpu",), (10, 30), kind="inference"),
    Fault(
        "inference-mode-absent",
        "inference_mode_absent.py",
        ("cuda",),
        (1,),
        kind="inference",
        notes="costs memory, hardly time, where the GPU is the bound",
    ),
    Fault("model-train-mode-eval", "train_mode_eval.py", ("cpu", "cuda"), (1,), kind="inference"),
    Fault("trt-removed-api", "trt_removed_api.py", ("cpu",), (1,), kind="inference"),
    # Many processes, gradients
    Fault(
        "dataparallel-used",
        "dataparallel.py",
        ("cuda-x2",),
        (30,),
        notes=(
            "the twin trains on one GPU: moving the parameters costs more than the second GPU saves, by "
            "estimate"
        ),
    ),
    Fault(
        "ddp-find-unused-on",
        "ddp_find_unused.py",
        ("cpu", "cuda-x2"),
        (1,),
        launcher=TWO_RANKS,
        notes=NO_COST,
    ),
    Fault("ddp-find-unused-on", "ddp_find_unused.py", ("cuda",), (1,), launcher=ONE_RANK, notes=NO_COST),
    Fault("rank-imbalance", "rank_imbalance.py", ("cpu", "cuda-x2"), (10, 30, 60), launcher=TWO_RANKS),
    Fault(
        "zero-grad-memset",
        "zero_grad_memset.py",
        ("cpu",),
        (1,),
        notes="on a CPU filling what is there was measured no dearer than allocating it anew",
    ),
    Fault(
        "zero-grad-memset",
        "zero_grad_memset.py",
        ("cuda",),
        (10, 30),
        notes="the dial is layers, by estimate; small batches make the parameters' traffic the cost",
    ),
)

PAIRS: tuple[Fault, ...] = (
    Fault(
        "graph-breaks",
        "graph_breaks_grad.py",
        ("cpu",),
        (30,),
        plants=("graph-breaks", "inference-mode-absent"),
        kind="inference",
    ),
    Fault(
        "fp32-matmul-no-tf32",
        "fp32_matmul_launch_blocking.py",
        ("cuda",),
        (60,),
        env={"CUDA_LAUNCH_BLOCKING": "1"},
        plants=("fp32-matmul-no-tf32", "launch-blocking-on"),
    ),
    Fault(
        "channels-last",
        "channels_last_benchmark_off.py",
        ("cuda",),
        (30,),
        plants=("channels-last", "cudnn-benchmark-off"),
    ),
)

# No doses: they are run at dose 0 only.
CLEAN: tuple[Fault, ...] = (
    Fault("clean", "clean_train_loader_cpu.py", ("cpu",), ()),
    Fault("clean", "clean_train_loader_cuda.py", ("cuda",), ()),
    Fault("clean", "clean_train_cpu.py", ("cpu",), ()),
    Fault("clean", "clean_train_cuda.py", ("cuda",), ()),
    Fault("clean", "clean_infer_loader_cpu.py", ("cpu",), (), kind="inference"),
    Fault("clean", "clean_infer_loader_cuda.py", ("cuda",), (), kind="inference"),
    Fault("clean", "clean_infer_cpu.py", ("cpu",), (), kind="inference"),
    Fault("clean", "clean_infer_cuda.py", ("cuda",), (), kind="inference"),
)
