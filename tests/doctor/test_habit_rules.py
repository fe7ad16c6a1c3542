"""Rules on habits that a source line shows: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import all_rules
from dynotune.schema.host import Line, Thread
from dynotune.schema.loader import Loader, Loading, SamplePart
from dynotune.schema.trace_summary import HostTime, Place

from .devices import found, lost, on_cpu, on_gpu

LIBRARY = "/usr/lib/python3.12/site-packages/"
MODULE = Line(
    function="train.py(30): step", text="out = model(x)", num=50, cpu_s=2.4,
    callee=LIBRARY + "torch/nn/modules/module.py(1700): _call_impl",
)  # fmt: skip
PARSES = Line(
    function="train.py(12): rows", text="row = json.loads(text)", num=40, cpu_s=1.9,
    callee="/usr/lib/python3.12/json/__init__.py(299): loads",
)  # fmt: skip
LISTED = Line(function="data.py(20): __getitem__", text="x = torch.tensor(values)", num=40, cpu_s=1.9)
PLAIN = Line(function="train.py(40): step", text="total += value", num=10, cpu_s=0.5)


def example_of(id_: str) -> str:
    return all_rules()[id_].example


def thread(*lines: Line, num: int = 100, **fields: Any) -> Thread:
    """Looked at a hundred times within a window of five seconds."""
    return Thread(
        **({"name": "MainThread", "of_steps": True, "num": num, "cpu_s": 4.9, "lines": list(lines)} | fields)
    )


def python(*lines: Line, host: float = 0.5, **fields: Any) -> Any:
    """A program on the CPU; half a step is Python between operators."""
    hosts = [HostTime(rank=None, window_s=1.0, loader_s=0.0, operator_s=1.0 - host, communication_s=0.0)]
    threads = [thread(*lines), *fields.pop("others", [])]
    return on_cpu(**({"shares": {"host": host}, "traced": {"hosts": hosts}, "threads": threads} | fields))


def test_parsing_in_the_loop_is_named_with_its_line_and_what_it_calls():
    finding = found(python(PARSES, MODULE, PLAIN))["text-parsed-per-item"]
    assert finding.share == pytest.approx(0.4)
    assert (finding.where, finding.severity) == (Place("train.py(12): rows"), "high")
    assert finding.evidence == ["40% of a step at train.py(12): rows, in json.loads: row = json.loads(text)"]
    assert finding.also == ["host-bound"]


OF_TEXT = """
    tensor-from-list text-parsed-per-item table-read-per-item file-opened-per-item archive-opened-per-item
    array-copied-per-item saved-per-step copied-per-step logged-per-step
"""


@pytest.mark.parametrize("id_", OF_TEXT.split())
def test_habit_is_named_when_a_line_is_its_own_example(id_):
    lines = [msgspec.structs.replace(LISTED, text=line.strip()) for line in example_of(id_).splitlines()]
    assert any(id_ in found(python(line, MODULE)) for line in lines)


def test_habits_written_in_c_are_known_by_the_text_of_their_line():
    assert found(python(LISTED, MODULE))["tensor-from-list"].where == Place("data.py(20): __getitem__")
    # What a library does below a line is the library's.
    inside = Line(
        function="train.py(9): f", text="torch.tensor(1)", callee=LIBRARY + "timm/x.py(2): f", num=40
    )
    assert "tensor-from-list" not in found(python(inside, MODULE))


@pytest.mark.parametrize(
    "text",
    [
        '"input_ids": torch.tensor(ids),',
        "act = lambda state: torch.tensor(state, dtype=torch.float32)",
        "x = torch.tensor([VOCAB[word] for word in words])",
        "torch.FloatTensor(s2), torch.FloatTensor(d))",
        "return (torch.tensor(s, dtype=torch.float32, device=dev), torch.tensor(a, device=dev),",
        "return torch.tensor(list(map(int, row))), label",
        "x = torch.as_tensor(frame.price.tolist(), device=device)",
        "x = np.array([float(cell) for cell in row.split()]) / 2",
        "x = numpy.asarray(list(map(float, row)))",
    ],
)
def test_a_list_of_numbers_that_a_line_converts_is_named(text):
    assert "tensor-from-list" in found(python(msgspec.structs.replace(LISTED, text=text), MODULE))


@pytest.mark.parametrize(
    "text",
    [
        '"top": sorted(p.grad.flatten().tolist())[-5:] if p.dim() > 1 else None,',
        'x = np.array(img).astype("float32") / 255.0',
        "x = np.asarray(picture)",
        "x = (x - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])",
        "mean = torch.tensor([0.485, 0.456, 0.406])",
        "return torch.tensor(np.array(img)).permute(2, 0, 1).float().div(255).unsqueeze(0)",
        "return torch.tensor(self.images[index])",
        "x = np.array([self.images[index] for index in chosen])",
        "x = torch.tensor([torch.load(path) for path in paths])",
        "x = grow(x) * torch.tensor(scale)",
        "x = torch.tensor(low), shift(torch.tensor(high))",
        "y = grown(torch.tensor(scale))",
        "roots = torch.linalg.eigvals(torch.tensor(companion))",
        "zero = torch.tensor(0)",
    ],
)
def test_arrays_pictures_and_a_few_numbers_are_no_list_of_numbers(text):
    assert "tensor-from-list" not in found(python(msgspec.structs.replace(LISTED, text=text), MODULE))


def test_a_conversion_that_a_copy_of_an_array_could_take_is_no_list():
    assert "tensor-from-list" not in found(python(msgspec.structs.replace(LISTED, num=4), MODULE))


@pytest.mark.parametrize(
    ("text", "callee"),
    [
        ("sheet.save(path)", LIBRARY + "PIL/Image.py(2593): save"),
        ("pen.line(points)", LIBRARY + "PIL/ImageDraw.py(200): line"),
        ("iio.imwrite(path, frame)", LIBRARY + "imageio/v3.py(150): imwrite"),
        ("save_image(batch, path)", LIBRARY + "torchvision/utils.py(120): save_image"),
        ("cv2.imwrite(path, frame)", ""),
    ],
)
def test_pictures_that_are_written_in_the_loop_are_named(text, callee):
    leaf = LIBRARY + "PIL/ImageFile.py(678): _encode_tile"
    writes = Line(function="train.py(50): sheet", text=text, callee=callee, leaf=leaf, num=20, cpu_s=1.0)
    assert found(python(writes, MODULE))["logged-per-step"].where == Place("train.py(50): sheet")


def test_pictures_that_are_read_are_no_log():
    reads = Line(
        function="data.py(9): item",
        text="x = Image.open(p)",
        callee=LIBRARY + "PIL/Image.py(9): open",
        num=20,
    )
    assert "logged-per-step" not in found(python(reads, MODULE))


def test_python_without_a_habit_is_told_where_it_runs():
    own = Line(function="train.py(14): shift", text="for value in values:", num=45, cpu_s=2.2)
    finding = found(python(own, MODULE, PLAIN))["host-bound"]
    assert finding.where == Place("train.py(14): shift")
    assert finding.evidence[1].startswith("41% of a step at train.py(14): shift: for value in values:")


# Loaders


def loader(*lines: Line, num_workers: int = 2, fetch_s: float = 0.3) -> Loader:
    parts = [
        SamplePart(part="own", num=one.num, wall_s=1.0, function=one.function, text=one.text) for one in lines
    ]
    loading = Loading(num_batches=20, fetch_s=fetch_s, longest_s=fetch_s, cpu_s=fetch_s, parts=parts)
    return Loader(name="DataLoader", dataset="data.Rows", num_workers=num_workers, loading=loading)


def test_workers_lines_say_what_makes_a_batch_slow():
    made = found(
        on_gpu(lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[loader(LISTED)], threads=[thread()])
    )
    assert made["tensor-from-list"].share == pytest.approx(0.6)
    assert "loader-bound" in made["tensor-from-list"].also
    plain = Line(function="data.py(31): __getitem__", text="mask = grow(mask)", num=90)
    waits = on_gpu(
        lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[loader(plain)], threads=[thread()]
    )
    assert found(waits)["loader-bound"].where == Place("data.py(31): __getitem__")


def test_batches_made_in_the_training_process_come_before_what_takes_a_part_of_that_time():
    resize = SamplePart(part="transform", what="resize", num=40, wall_s=0.4, function="data.py(28): get")
    rest = SamplePart(part="own", num=60, wall_s=0.6, function="data.py(31): get", text="mask = grow(mask)")
    parts = Loading(num_batches=20, fetch_s=0.3, longest_s=0.3, cpu_s=0.1, parts=[resize, rest])
    drawn = Loader(name="DataLoader", dataset="data.Rows", num_workers=0, loading=parts)
    findings = found(
        on_gpu(lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[drawn], threads=[thread()])
    )
    assert list(findings)[:2] == ["num-workers-zero", "resized-per-item"]


def test_without_workers_the_loops_own_thread_is_seen_inside_the_loader():
    inside = Line(function="data.py(31): __getitem__", text="mask = grow(mask)", num=60, inside="loader")
    drawn = loader(inside, num_workers=0)
    finding = found(
        on_gpu(lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[drawn], threads=[thread(inside)])
    )["num-workers-zero"]
    assert finding.where == Place("data.py(31): __getitem__")


# Waits


def test_reading_a_value_of_the_device_is_no_habit():
    lists = Line(
        function="serve.py(70): handle", text="reply(torch.tensor(scores.tolist()))", num=40, cpu_s=1.9
    )
    told = Line(function="train.py(70): step", text='print(f"{loss.item():.3f}")', num=40, cpu_s=1.9)
    waits = on_gpu(lost("host-bound", 0.5), shares={"host": 0.5}, threads=[thread(lists, told, MODULE)])
    assert not {"tensor-from-list", "logged-per-step"} & set(found(waits))
    assert "tensor-from-list" in found(python(lists, MODULE))


def test_writing_pictures_is_logging():
    saves = Line(function="train.py(72): record", text="image.save(path)", num=40, cpu_s=1.9,
                 callee=LIBRARY + "PIL/Image.py(2592): save")  # fmt: skip
    assert found(python(saves, MODULE))["logged-per-step"].where == Place("train.py(72): record")


def test_making_a_picture_of_an_array_is_no_logging():
    reads = Line(function="train.py(72): record", text="image = to_pil(array)", num=40, cpu_s=1.9,
                 callee=LIBRARY + "torchvision/utils.py(177): _Image_fromarray")  # fmt: skip
    assert "logged-per-step" not in found(python(reads, MODULE))


# Launches


def test_a_host_that_launches_most_of_the_time_has_too_many_launches_and_no_work_of_its_own():
    backward = Line(
        function="train.py(31): step", text="loss.backward()", num=45, cpu_s=2.2,
        callee=LIBRARY + "torch/_tensor.py(600): backward",
    )  # fmt: skip
    findings = found(
        on_gpu(lost("host-bound", 0.6), shares={"host": 0.6}, threads=[thread(MODULE, backward, PLAIN)])
    )
    assert "host-bound" not in findings
    assert "compile.mode=reduce-overhead" in map(str, findings["launch-bound"].candidates)
    own = Line(function="train.py(14): shift", text="for value in values:", num=70, cpu_s=3.4)
    python = found(
        on_gpu(lost("host-bound", 0.6), shares={"host": 0.6}, threads=[thread(own, MODULE, num=120)])
    )
    assert python["host-bound"].where == Place("train.py(14): shift")


def test_a_library_that_trains_for_the_program_launches_for_it():
    fits = "lightning/pytorch/trainer/trainer.py(522): fit"
    below = [
        Line(
            function="train.py(90): main",
            text="trainer.fit(module, loader)",
            num=45,
            cpu_s=2.2,
            callee=LIBRARY + fits,
            leaf=LIBRARY + leaf,
        )
        for leaf in (
            "torch/autograd/graph.py(860): _engine_run_backward",
            "torch/optim/adam.py(803): _fused_adam",
        )
    ]
    losses: dict[str, Any] = {"shares": {"host": 0.6}, "threads": [thread(*below)]}
    assert "launch-bound" in found(on_gpu(lost("host-bound", 0.6), **losses))


def test_an_environment_in_a_folder_named_torch_is_not_torch():
    counts = Line(
        function="train.py(9): step",
        text="frame.sum()",
        num=80,
        cpu_s=3.9,
        callee="/opt/torch/.venv/lib/python3.12/site-packages/pandas/core/frame.py(2): sum",
    )
    findings = found(on_gpu(lost("host-bound", 0.6), shares={"host": 0.6}, threads=[thread(counts)]))
    assert "launch-bound" not in findings and "table-read-per-item" in findings
    trains = Line(
        function="train.py(9): step",
        text="loss.backward()",
        num=80,
        cpu_s=3.9,
        callee="/opt/torch/.venv/lib/python3.12/site-packages/torch/_tensor.py(2): backward",
    )
    assert "launch-bound" in found(
        on_gpu(lost("host-bound", 0.6), shares={"host": 0.6}, threads=[thread(trains)])
    )


# Setting up in the loop


@pytest.mark.parametrize(
    ("id_", "callee", "leaf"),
    [
        ("built-per-step", "torch/nn/modules/conv.py(9): __init__", "torch/nn/init.py(5): kaiming_uniform_"),
        (
            "built-per-step",
            "torch/optim/adamw.py(9): __init__",
            "torch/optim/optimizer.py(5): add_param_group",
        ),
        ("copied-per-step", "torch/nn/modules/module.py(2500): load_state_dict", ""),
        (
            "built-per-step",
            "transformers/modeling_utils.py(4000): from_pretrained",
            "transformers/x.py(1): y",
        ),
        ("file-opened-per-item", "torch/serialization.py(1200): load", "torch/_utils.py(9): _rebuild"),
    ],
)
def test_line_that_sets_up_in_the_loop_is_named_although_it_calls_torch(
    id_: str, callee: str, leaf: str
) -> None:
    line = Line(
        function="app.py(12): answer",
        text="net = make()",
        callee=LIBRARY + callee,
        leaf=leaf and LIBRARY + leaf,
        num=40,
        cpu_s=1.9,
    )
    findings = found(python(line, MODULE))
    assert findings[id_].where == Place("app.py(12): answer") and findings[id_].share == pytest.approx(0.4)
    assert len({"built-per-step", "copied-per-step", "file-opened-per-item"} & findings.keys()) == 1


def test_call_of_a_module_sets_nothing_up() -> None:
    assert not {"built-per-step", "file-opened-per-item"} & found(python(MODULE)).keys()


# Parts of a sample's time


def made(part: str, what: str, text: str = "x = self.f(index)", share: float = 1.0) -> SamplePart:
    return SamplePart(
        part=part, what=what, num=90, wall_s=share, function="data.py(9): __getitem__", text=text
    )


MADE = {
    "text-parsed-per-item": ("decode", "text", "row = json.loads(text)"),
    "table-read-per-item": ("read", "table", "row = self.table.iloc[index]"),
    "file-opened-per-item": ("read", "numpy file", "x = np.load(path)"),
    "archive-opened-per-item": ("read", "HDF5 opened", "with h5py.File(self.path) as file:"),
    "tokenized-per-item": ("decode", "tokenizing", "ids = self.tokenizer(text)"),
    "resized-per-item": ("transform", "torchvision.transforms.transforms.Resize", "x = self.transform(x)"),
    "transform-heavy": ("transform", "Shift", "x = self.shift(x)"),
    "array-copied-per-item": ("own", "", "x = np.array(self.images)[index]"),
    "locked-per-item": ("wait", "lock", "with self.lock:"),
    "handover-heavy": ("move", "queue, pickling", ""),
}


def of_parts(*parts: SamplePart, num_workers: int = 2) -> Any:
    loading = Loading(num_batches=20, fetch_s=0.3, longest_s=0.3, cpu_s=0.3, parts=list(parts))
    drawn = Loader(name="DataLoader", dataset="data.Rows", num_workers=num_workers, loading=loading)
    return found(
        on_gpu(lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[drawn], threads=[thread()])
    )


@pytest.mark.parametrize("id_", ["text-parsed-per-item", "file-opened-per-item"])
def test_a_slow_line_of_a_loader_without_workers_still_says_that_workers_are_worth_a_try(id_):
    findings = of_parts(made(*MADE[id_]), num_workers=0)
    assert id_ in findings and "loader-bound" not in findings
    assert {one.knob for one in findings["num-workers-zero"].candidates} == {"loader.num_workers"}


@pytest.mark.parametrize("id_", MADE)
def test_a_part_of_a_samples_time_is_named_once_with_its_line(id_):
    part, what, text = MADE[id_]
    ids = {one for one, finding in of_parts(made(part, what, text)).items() if one in MADE}
    assert ids == {id_}
    finding = of_parts(made(part, what, text))[id_]
    assert finding.share == pytest.approx(0.6) and finding.where == Place("data.py(9): __getitem__")
    assert not {one for one in of_parts(made("own", ""), made(part, what, text, share=0.001)) if one in MADE}


def test_samples_of_a_thread_that_the_loop_waits_for_are_told_as_a_loaders():
    gets = Line(function="train.py(50): main", text="batch = ready.get()", num=60, cpu_s=0.01,
                callee="/usr/lib/python3.12/queue.py(154): get")  # fmt: skip
    maker = thread(LISTED, of_steps=False, name="maker", cpu_s=4.5, parts=[made("decode", "text")])
    finding = found(python(gets, MODULE, host=0.6, others=[maker]))["text-parsed-per-item"]
    assert finding.share == pytest.approx(0.6)


def test_an_array_that_is_indexed_first_is_not_copied_whole():
    assert "array-copied-per-item" not in of_parts(made("own", "", "x = np.array(self.images[index])"))
