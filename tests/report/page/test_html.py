from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from dynotune.report.blocks import Answer, Listing, Report, Section
from dynotune.report.page import html
from dynotune.report.page.html import markdown, page, write
from dynotune.report.page.markdown import _text
from dynotune.schema import document
from dynotune.schema.arm import arm_key, ids_of
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.startup import Startup
from dynotune.schema.study import Study

from .. import answers, studies
from ..accounts import ACCOUNT
from ..layouts import forest_of
from ..summaries import difference as trace_difference
from ..summaries import summary as trace_summary
from ..timed_starts import FOUND

HOSTILE = (
    "</script><script>alert(1)</script><img src=//evil.example/x "
    "onerror=alert(1)>\"'&<!--{{7*7}}\x1b[31m\u202e\x00]]>"
)
DEGENERATE = [
    studies.on_top,
    studies.empty,
    studies.unfinished,
    studies.only_failures,
    studies.one_candidate,
    studies.large,
]
# Strings that say what kind of thing another is: no other value of theirs is read.
KINDS = re.compile(r"dynotune\.|limit$|timing$|shares$|unknown$|[sJ]/(sample|step)$|[A-Za-z0-9-]{0,20}$")


class Reading(HTMLParser):
    """Tags, attributes, texts and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._within: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._within.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            while self._within.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] == "script":
            self.scripts[-1] += data
        elif not self._within or self._within[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def hostile(found: Any) -> Any:
    """With the same strange text in every string of a document that may be any text."""
    escaped = HOSTILE.replace("\\", "\\\\")

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: key(inner) if name in ("arm", "against") else changed(inner)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [changed(inner) for inner in value]
        if not isinstance(value, str) or KINDS.match(value):
            return value
        # Each setting stays what its candidate is called.
        in_keys = re.sub(r"(?<![\w.])([a-z]+\.[A-Za-z])", rf"{escaped}\1", value)
        return in_keys if "=" in value else HOSTILE + value

    def key(value: Any) -> Any:
        return arm_key(map(changed, ids_of(value))) if isinstance(value, str) else value

    made = msgspec.json.decode(document.encode(found))
    named = {"facts": {HOSTILE + name: changed(value) for name, value in made["facts"].items()}}
    if isinstance(found, Study):
        named["outcomes"] = {changed(name): changed(fate) for name, fate in made["outcomes"].items()}
    if isinstance(found, Comparison):
        named["readback"] = {changed(name): changed(value) for name, value in made["readback"].items()}
    return document.decode(document.encode(changed(made) | named), type(found), name="a hostile document")


def memory_account() -> MemoryAccount:
    return ACCOUNT


def startup() -> Startup:
    return FOUND


@pytest.fixture(scope="module")
def strange() -> Study:
    return hostile(studies.rich())


def test_the_answer_stands_before_everything_else():
    text = Reading(page(studies.rich())).text
    told = [
        "2.31×",
        "2.27× to 2.35× at 95%, on 8 fresh pairs",
        "Three settings make it",
        "Where a sample goes",
        "Settings tried",
    ]
    places = [text.index(one) for one in told[:3]] + [text.rindex(one) for one in told[3:]]
    assert places == sorted(places)


def test_study_page_names_the_recipe_it_began_from_and_calls_nothing_as_written():
    text = Reading(page(studies.on_top())).text
    assert "on 8 fresh pairs, on top of recipe.toml" in text
    assert "/runs/a study/recipe.toml: cudnn.benchmark=true" in text
    assert "against the command as begun" in text and "as written" not in text
    nothing = msgspec.structs.replace(studies.on_top(), recipe=[], confirmed=None)
    assert (
        "no further setting was proved to help on top of recipe.toml, which stands"
        in Reading(page(nothing)).text
    )


def test_the_page_says_why_one_step_is_shown_when_a_diagnosis_was_disturbed():
    disturbed = msgspec.structs.replace(studies.after(), disturbance="others used 47% of the cores")
    study = studies.rich(diagnosis_with_recipe=disturbed)
    reason = (
        "The step with the recipe is not shown: others used 47% of the cores during one of the two diagnoses."
    )
    assert reason in Reading(page(study)).text
    assert reason in markdown(study)
    assert reason not in Reading(page(studies.rich())).text


def test_every_part_of_the_story_is_told():
    reading = Reading(page(studies.rich(), recipe='[settings]\n"loader.num_workers" = 8\n'))
    headings = (
        "What each setting adds to the others",
        "Settings together",
        "Bounds and what was measured",
        "Confirmation",
    )
    for heading in (*headings, "Results and start", "The search", "Be wary of", "Repeat it", "Machine"):
        assert heading in reading.text
    assert '[settings] "loader.num_workers" = 8' in reading.text
    assert "after 154 steps (7.2 s later)" in reading.text
    assert "another program used 31% of the GPU" in reading.text
    assert "precision.autocast=bf16 is unverified: no call was seen." in reading.text


def test_study_page_gives_settings_without_effect_a_row_and_a_point():
    text = page(studies.rich())
    for one in studies.rich().candidates:
        assert one.id in text
    rows = forest_of(studies.rich(), "Speed-up of each setting alone").rows
    drawn = {row.name for row in rows if row.ratio is not None}
    assert {"loader.num_workers=8", "loader.persistent_workers=true", "matmul.fp32_precision=high"} <= drawn
    assert list(dict.fromkeys(row.group for row in rows))[:3] == ["proved", "not needed", "no effect"]


@pytest.mark.parametrize(
    "made", [studies.rich, answers.comparison, answers.diagnosis, memory_account, trace_summary]
)
def test_a_picture_has_a_table_beside_it_and_says_what_it_shows(made):
    reading = Reading(page(made()))
    labels = [value for tag, name, value in reading.attributes if tag == "div" and name == "aria-label"]
    pictures = [label for label in labels if label.endswith("The table has its numbers.")]
    assert pictures and reading.tags.count("table") >= len(pictures)


@pytest.mark.parametrize("made", DEGENERATE)
def test_a_page_is_made_of_what_there_is(made):
    reading = Reading(page(made()))
    assert reading.tags.count("h1") == 1
    assert not {"nan", "inf", "Unknown(reason"} & set(reading.text.split())
    assert f"the command {made().begun}" in reading.text or "None was tried yet." in reading.text


def test_a_study_that_is_not_finished_says_so_and_how_to_go_on():
    text = Reading(page(studies.unfinished())).text
    assert "Not finished" in text
    assert "dynotune tune --resume 20261122-101500-123-abcdef" in text
    assert "recipe verify" not in text


def test_nothing_proved_is_said_as_plainly_as_a_gain():
    text = Reading(page(studies.one_candidate())).text
    assert text.index("Nothing proved") < text.rindex("Settings tried")
    assert "dynotune run --recipe" not in text


@pytest.mark.parametrize("made", [studies.empty, studies.rich, answers.comparison])
def test_page_has_one_script_which_copies(made):
    reading = Reading(page(made()))
    assert reading.tags.count("script") == 1
    assert "navigator.clipboard" in reading.scripts[0]


def test_a_large_study_makes_a_small_page():
    assert len(page(studies.large())) < 300_000


def test_of_many_failures_the_first_are_listed_and_the_others_counted():
    study = studies.large()
    trials = [msgspec.structs.replace(trial, ended="failed", value=None, void="") for trial in study.trials]
    text = Reading(page(msgspec.structs.replace(study, trials=trials))).text
    assert "1,960 more: study.json has all." in text


def test_no_text_of_the_program_becomes_part_of_the_page(strange):
    usual, reading = Reading(page(studies.rich(), recipe="x")), Reading(page(strange, recipe=HOSTILE))
    assert set(reading.tags) == set(usual.tags)
    assert reading.tags.count("script") == usual.tags.count("script") == 1
    assert {(tag, name) for tag, name, _ in reading.attributes} == {
        (tag, name) for tag, name, _ in usual.attributes
    }
    for tag, name, value in reading.attributes:
        if name in ("href", "src"):
            assert value.startswith("#") or (tag == "link" and value == "data:,")
    assert reading.text.count("{{7*7}}") > 100


def test_study_page_writes_out_characters_that_do_not_print(strange):
    text = page(strange, recipe=HOSTILE)
    assert [character for character in ("\x1b", "\u202e", "\x00") if character in text] == []
    assert "\\x1b[31m\\u202e\\x00" in Reading(text).text


def test_names_in_a_picture_are_shown_as_they_are(strange):
    assert "<img src=" in Reading(page(strange)).text
    assert "<img" not in page(strange)


def test_numbers_that_are_none_are_left_out_of_the_plots():
    study = studies.one_candidate()
    (estimate,) = study.estimates
    for speedup, ci in (
        (float("nan"), None),
        (float("inf"), None),
        (0.0, None),
        (1.2, (0.0, float("inf"))),
        (1e300, None),
    ):
        changed = msgspec.structs.replace(estimate, speedup=speedup, ci=ci)
        text = page(msgspec.structs.replace(study, estimates=[changed]))
        assert not re.search(r'"(nan|-?inf)%?"', text)


def test_the_page_names_no_other_host_and_its_policy_forbids_them():
    reading = Reading(page(studies.rich()))
    (policy,) = [
        value
        for tag, name, value in reading.attributes
        if (tag, name) == ("meta", "content") and "-src" in value
    ]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert not re.search(r"url\(|@import|//", html._part("style.css"))
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|innerHTML|eval\(", html._part("page.js"))
    assert not re.search(r"https?://", page(studies.rich()))


def test_the_policy_lets_the_script_run_and_no_other():
    text = page(studies.rich())
    (script,) = Reading(text).scripts
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{allowed}&#39;;" in text


def test_a_comparison_begins_with_its_verdict_in_one_sentence_and_tells_the_rest_in_order():
    text = Reading(page(answers.comparison())).text
    told = [
        "1.42× faster",
        "1.38× to 1.45× at 95%, on 4 fresh pairs",
        "1.42× faster with loader.num_workers=8 precision.autocast=bf16 against the command as it is.",
        "281 → 399",
        "Each pair is one fresh run of each arm",
        "another program used 31% of the GPU",
        "workers will share cores",
        "It does not compare losses or outputs",
        (
            "dynotune compare loader.num_workers=8 precision.autocast=bf16 --warmup 12 --steps 30 -- python "
            "train.py"
        ),
    ]
    places = [text.index(one) for one in told]
    assert places == sorted(places)
    assert "unknown: no call was seen" in text and "□ unverified" in text and "● in effect" in text
    assert "OMP_NUM_THREADS=1" in text and "train.py:12" in text
    assert "gpu.name unknown: no driver" in text


def test_each_pair_of_a_comparison_is_drawn_below_its_interval():
    rows = forest_of(answers.comparison(), "The speed-up with its interval").rows
    assert [row.name for row in rows] == ["all", "pair 1", "pair 2", "pair 3", "pair 4"]
    assert [row.ratio for row in rows] == pytest.approx([1.4162, 3.55 / 2.51, 1.44, 3.5 / 2.55, 3.52 / 2.45])
    assert rows[0].figures == ("1.42×", "(1.38× to 1.45×)") and rows[2].figures == ("1.44×", "")


def test_comparison_that_was_stopped_says_so_with_the_pairs_that_it_has():
    stopped = answers.comparison(verdict=None, speedup=None, ci=None, num_pairs=0, voided=[])
    text = Reading(page(stopped)).text
    assert "Stopped 1.41×, 1.44×, 1.37×, 1.44× Stopped after 4 pairs with" in text
    assert "4 of at most 12" in text


def test_comparison_states_one_number_in_one_direction_when_it_is_slower():
    slower = answers.comparison(verdict="slower", speedup=1 / 1.8, ci=(1 / 2.22, 1 / 1.45))
    for text in (Reading(page(slower)).text, markdown(slower)):
        assert "1.80× slower" in text and "1.45× to 2.22× at 95%" in text
    assert "0.56×" not in markdown(slower).partition("## The interval")[0]


def test_an_arm_that_failed_and_a_comparison_that_is_open_say_so_first():
    text = Reading(page(answers.failed())).text
    assert (
        text.index("Failed The command failed in the candidate with")
        < text.index("RuntimeError: out of memory")
        < text.rindex("Settings")
    )
    text = Reading(page(answers.undecided())).text
    assert "Undecided speed-up 0.97× to 1.07× at 95%, on 4 blocks" in text
    assert "Undecided: 22 blocks would likely settle it, with loader.num_workers=8" in text


def test_a_diagnosis_begins_with_what_limits_the_program_and_each_finding_with_one_thing_to_do():
    text = Reading(page(answers.diagnosis())).text
    told = [
        "Input limits this command",
        "61% of it the device waits for the data loader",
        "dynotune tune -- python train.py --data 'my photos'",
        "Time and share of each part",
        "high num-workers-zero up to 61% of a step",
        "Batches are made in the training process.",
        "train.py:31 main",
        "Do this: Let workers make batches",
        "dynotune compare loader.num_workers=4 -- python train.py --data 'my photos'",
        "predicted to save 30% to 55% of a step",
        "batches drawn: 1 a step, 14 ms each",
        "low cpu-governor-powersave",
        "sudo cpupower frequency-set",
        "The slowest step took 90 ms, a typical step 22 ms",
        "No change of the loader can gain more than 61% of a step.",
        "4 workers 4 ms 10 ms 9 ms of 16 cores",
        "thermal-throttling: gpu.clocks",
        "Meanwhile other processes used 1.77 of 2 cores",
        "dynotune explain num-workers-zero",
    ]
    assert [one for one in told if one not in text] == []
    places = [text.index(one) for one in told]
    assert places == sorted(places)


def test_of_a_diagnosis_without_findings_the_page_says_that_there_are_none():
    reading = Reading(page(answers.nothing_found()))
    assert "No bottleneck" in reading.text and "None: no rule found anything" in reading.text
    assert "figure" not in reading.tags


@pytest.mark.parametrize("made", [answers.comparison, answers.failed, answers.undecided, answers.diagnosis])
def test_no_text_of_the_program_becomes_part_of_the_page_of_an_answer(made):
    usual, reading = Reading(page(made())), Reading(page(hostile(made())))
    assert set(reading.tags) == set(usual.tags)
    assert reading.tags.count("script") == usual.tags.count("script")
    assert {(tag, name) for tag, name, _ in reading.attributes} == {
        (tag, name) for tag, name, _ in usual.attributes
    }
    assert reading.text.count("{{7*7}}") > 10
    assert not {"\x1b", "\u202e", "\x00"} & set(page(hostile(made())))


@pytest.mark.parametrize(("exit_code", "said"), [(1, "with exit code 1."), (-9, "by signal 9.")])
def test_failed_command_ends_in_the_same_words_when_written_as_page_or_markdown(exit_code, said):
    comparison = answers.failed()
    failed = msgspec.structs.replace(comparison.failed, exit_code=exit_code)
    comparison = msgspec.structs.replace(comparison, failed=failed)
    for text in (Reading(page(comparison)).text, markdown(comparison)):
        assert f"It failed in the candidate (loader.num_workers=8 precision.autocast=bf16), {said}" in text


def test_page_and_markdown_say_what_a_finding_explains():
    assert "Explains loader-bound." in Reading(page(answers.diagnosis())).text
    assert "Explains loader-bound." in markdown(answers.diagnosis())


def test_page_calls_the_runs_before_a_search_by_a_name_that_readers_know():
    assert "pilots" not in page(studies.rich()) and "first runs" in page(studies.rich())


def test_many_findings_and_long_lines_make_a_small_page():
    one = answers.diagnosis().findings[0]
    long = msgspec.structs.replace(one, evidence=["x" * 2000] * 40, claim="y" * 4000, remedy="z" * 4000)
    text = page(answers.diagnosis(findings=[long] * 60, notes=["n" * 4000]))
    assert len(text) < 2_000_000
    assert "20 more: --json has all." in Reading(text).text


def test_long_lines_of_a_failed_command_make_a_small_page():
    comparison = answers.failed()
    failed = msgspec.structs.replace(comparison.failed, last_lines=["x" * 20_000] * 40)
    long = msgspec.structs.replace(comparison, failed=failed)
    for write_ in (page, markdown):
        assert len(write_(long)) < len(write_(comparison)) + 50_000 and "x" * 900 in write_(long)


MADE = [studies.rich, *DEGENERATE, answers.comparison, answers.failed, answers.undecided]
MADE += [answers.diagnosis, answers.nothing_found, lambda: answers.diagnosis(upper_bounds=[])]
MADE += [memory_account, trace_summary, trace_difference, startup]


@pytest.mark.parametrize("made", MADE)
def test_markdown_tells_what_the_page_tells_and_its_tables_are_whole(made):
    text = markdown(made())
    assert text.startswith("# dynotune ") and "\n\n\n" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        lines = table.splitlines()
        assert len(lines) > 2 and set(lines[1]) <= set("|-: ")
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    rows = len(re.findall(r'<tr role="row"><td', page(made())))
    assert (
        len(re.findall(r"^\|", text, flags=re.MULTILINE))
        - 2 * len(re.findall(r"^\| -", text, flags=re.MULTILINE))
        == rows
    )


@pytest.mark.parametrize("made", [studies.rich, answers.comparison, answers.failed, answers.diagnosis])
def test_no_text_of_the_program_becomes_markup_of_markdown(made):
    text = markdown(hostile(made()), recipe=HOSTILE + "\n# more")
    of_lines = re.sub(r"^    .*$|`[^`\n]*`", "", text, flags=re.MULTILINE)  # code is shown as it is
    assert not re.search(r"<(?!code)|(?<!\\)[\[\]~]|://|@", of_lines)
    assert "{{7*7}}" in text or "7\\*7" in text
    assert not {"\x1b", "\u202e", "\x00"} & set(text)
    usual = re.findall(r"^#+ ", markdown(made()), flags=re.MULTILINE)
    assert re.findall(r"^#+ ", text, flags=re.MULTILINE) == usual


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1. not a list", "1\\. not a list"),
        ("# no heading", "\\# no heading"),
        ("- no item", "\\- no item"),
        ("1.42× faster", "1.42× faster"),
        ("num_workers and _this_", "num_workers and \\_this\\_"),
        ("<b>@me $x$ www https://a.b</b>", "&lt;b&gt;&#64;me &#36;x&#36; www https&#58;//a.b&lt;/b&gt;"),
        ("see www.a.b", "see www&#46;a.b"),
        ("a|b `c` *d* [e](f)", "a\\|b \\`c\\` \\*d\\* \\[e\\](f)"),
    ],
)
def test_a_text_in_markdown_reads_as_it_is(text, shown):
    assert _text(text) == shown


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    target = tmp_path / "report.html"
    target.mkdir()
    with pytest.raises(CannotRunHere, match=r"report\.html: Is a directory"):
        write(target, studies.one_candidate())
    with pytest.raises(CannotRunHere, match="No such file"):
        write(tmp_path / "none" / "report.html", studies.one_candidate())
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("scheme", [0, 1])
def test_texts_stand_out_from_the_page_in_both_schemes(scheme):
    style = html._part("style.css")
    blocks = re.findall(r":root \{(.*?)\}", style, flags=re.S)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[scheme]))
    for ink in ("ink", "muted", "accent", "good", "bad", "wary", "note"):
        assert contrast(colours[ink], colours["surface"]) >= 4.5
        assert contrast(colours[ink], colours["raised"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """Of WCAG 2."""
    lights = sorted(luminance(colour) for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_page_keeps_a_number_and_its_unit_on_one_line_when_both_stand_in_a_sentence():
    made = page(answers.diagnosis())
    assert "A step takes 23\u00a0ms; 61%" in made
    assert not re.search(r"<(pre|code)[^>]*>[^<]*\u00a0", made)


def test_page_sets_an_answer_smaller_when_it_is_long():
    long = "A step takes 23 ms, and much is to be said of each of them. " * 4
    assert '<h1 class="long">' in page(answers.diagnosis(verdict=long))
    assert '<h1 class="short">' in page(answers.diagnosis())


def test_page_has_no_section_when_nothing_stands_in_it():
    made = page(answers.diagnosis(notes=[], facts={}))
    assert "Be wary of" not in made
    assert "Machine" not in Reading(made).texts


def test_page_shows_lines_at_once_when_there_is_no_name_to_open_them_by():
    made = html.live_parts(
        Report(
            kicker="",
            answer=Answer(large="", line=""),
            sections=[
                Section("Changed", [Listing("", ["a line"])]),
                Section("Printed", [Listing("All", ["b"])]),
            ],
        )
    ).story
    assert made.count("<details") == made.count("<summary>All") == 1
    assert "a line" in made[: made.index("<details")]
