from __future__ import annotations

import json

import pytest

from dynotune import cli
from dynotune import knobs as catalogue
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import AllocConf, Attr, Call, Constructor, Env, Knob, Method, Module, Preload

DOCS = "https://docs.pytorch.org/"
WORKERS = Knob(
    id="loader.num_workers",
    site=Constructor(("torch.utils.data.DataLoader",), "num_workers"),
    type="int",
    minimum=0,
    default="0: the program loads by itself",
    when="construct",
    effect="sampling",
    doc="Processes that load batches beside the program.",
    hurts="More of them than cores.",
    source=DOCS,
)
BENCHMARK = Knob(
    id="cudnn.benchmark",
    site=Attr("torch.backends.cudnn.benchmark"),
    type="bool",
    default="false",
    when="any",
    effect="numerics",
    needs=("gpu.count",),
    applies=lambda facts: bool(facts["gpu.count"]),
    unless="There is no GPU.",
    doc="cuDNN tries its algorithms and keeps the fastest.",
    source=DOCS,
)


@pytest.fixture(autouse=True)
def two_knobs(monkeypatch):
    both = {knob.id: knob for knob in (WORKERS, BENCHMARK)}

    def get(id: str) -> Knob:
        if id not in both:
            raise UsageError(f"No knob is called {id}.", hint="dynotune knobs lists them.")
        return both[id]

    monkeypatch.setattr(catalogue, "all_knobs", lambda: tuple(both.values()), raising=False)
    monkeypatch.setattr(catalogue, "get", get, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def knobs(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(["knobs", *argv])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_table_shows_values_default_effect_moment_and_source(capsys):
    text = knobs(capsys)
    for shown in (
        *("loader.num_workers", "a whole number, 0 or more", "sampling", "construct", WORKERS.doc),
        *(
            "Default: 0: the program loads by itself.",
            DOCS,
            "cudnn.benchmark",
            "true | false",
        ),
    ):
        assert shown in text


def test_a_screen_shows_a_line_for_each_knob(capsys, monkeypatch):
    monkeypatch.setattr("dynotune.report.catalogue.is_brief", lambda: True)
    text = knobs(capsys)
    assert WORKERS.doc in text
    assert DOCS not in text
    assert len(text.splitlines()) <= 6
    assert DOCS in knobs(capsys, "cudnn.benchmark")


def test_the_table_explains_the_words_it_uses_and_no_others(capsys):
    text = knobs(capsys)
    assert "numerics    results may differ by rounding" in text
    assert "semantics" not in text


def test_one_knob_is_explained_with_what_it_hurts_and_where_it_does_not_apply(capsys):
    assert "More of them than cores." in knobs(capsys, "loader.num_workers")
    text = knobs(capsys, "cudnn.benchmark")
    for shown in (
        "torch.backends.cudnn.benchmark",
        "There is no GPU.",
        "gpu.count",
        "compare cudnn.benchmark=true",
    ):
        assert shown in text


def test_json_on_standard_output_is_one_document_with_its_schema(capsys):
    document = json.loads(knobs(capsys, "--json", "-"))
    assert document["schema"] == "dynotune.knobs/1"
    assert [knob["id"] for knob in document["knobs"]] == ["loader.num_workers", "cudnn.benchmark"]
    assert document["knobs"][0]["site"]["argument"] == "num_workers"
    assert "applies" not in document["knobs"][1]


def test_json_goes_to_a_file_and_nothing_to_standard_output(capsys, tmp_path):
    file = tmp_path / "knobs.json"
    assert knobs(capsys, "cudnn.benchmark", "--json", str(file)) == ""
    (knob,) = json.loads(file.read_text())["knobs"]
    assert knob["id"] == "cudnn.benchmark"


def test_a_word_is_found_however_it_joins_its_parts(capsys, monkeypatch):
    monkeypatch.undo()
    assert "arg.NAME" in knobs(capsys, "batch_size")
    assert "loader.num_workers" in knobs(capsys, "num workers")


def test_an_unknown_knob_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["knobs", "loader.wrokers"])
    assert end.value.code == 2
    assert "No knob is called loader.wrokers." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (Env("A"), "the environment variable A"),
        (AllocConf("expandable_segments"), "expandable_segments in PYTORCH_ALLOC_CONF"),
        (Preload({"jemalloc": ("libjemalloc.so.2",)}), "LD_PRELOAD (jemalloc)"),
        (Attr("torch.a"), "torch.a"),
        (Call("torch.set_a", "torch.get_a"), "torch.set_a()"),
        (Constructor(("torch.A", "torch.B"), "c"), "c= of torch.A, torch.B"),
        (Method(("torch.Tensor.to",), "non_blocking"), "non_blocking= of torch.Tensor.to"),
        (Module("channels_last"), "the outermost module, before its first call (channels_last)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_site_is_said_in_words(site, said):
    from dynotune.report.catalogue import place

    assert place(site) == said
