"""From a study to its recipe, from a recipe to settings, and in what here is not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.recipes import checking, writing
from dynotune.recipes.checking import judge_recipe
from dynotune.schema import recipe as recipes
from dynotune.schema.arm import arm
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.recipe import Header, Proof, Recipe
from dynotune.schema.setting import Setting
from dynotune.schema.study import Attempt, BaseRecipe, Candidate, Estimate, Study

from ..fakes import of_run

WORKERS, SPACED, PINNED = (
    Setting("loader.num_workers", 4),
    Setting("env.OMP_SCHEDULE", "x y"),
    Setting("loader.pin_memory", True),
)
COMMAND = ["python", "train.py", "--batch", "32", "--data", "/data/coco.yaml"]
FACTS = {
    "gpu.name": "NVIDIA H200",
    "gpu.count": 1,
    "gpu.driver": "570.1",
    "torch.version": "2.11.0+cu130",
    "torch.cuda": "13.0",
    "python.version": "3.11.9",
    "host.cpu": "EPYC",
    "host.num_cores": 16,
    "host.memory_bytes": Unknown("nobody knows"),
}
NO_GPU = FACTS | {
    "gpu.count": 0,
    "gpu.name": Unknown("there is no GPU"),
    "gpu.driver": Unknown("there is no driver"),
    "torch.version": "2.11.0+cpu",
    "torch.cuda": None,
}
# From the study to the recipe


def compared(**changes):
    fields = {"verdict": "faster", "speedup": 1.42, "ci": (1.38, 1.47), "num_pairs": 8} | changes
    return of_run(Comparison, id="c", command=COMMAND, candidate_settings=[], **fields)


def study(**changes):
    whole = [WORKERS, SPACED, PINNED]
    fields = {
        "recipe": whole,
        "selected": whole,
        "confirmed": compared(),
        "facts": FACTS,
        "attempts": [Attempt("2026-01-01T00:00:00Z", "2026-01-01T00:15:00Z", "done")],
        "candidates": [Candidate(setting=SPACED, effect="exact")],
    } | changes
    return of_run(Study, id="s", command=COMMAND, budget_s=900, **fields)


def without(whole, knob):
    return arm(one for one in whole if one.knob != knob).key


def ablated(whole, setting, speedup, **changes):
    fields = {"arm": arm(whole).key, "against": without(whole, setting.knob), "phase": "prune"} | changes
    return Estimate(speedup=speedup, ci=(speedup / 1.1, speedup * 1.1), num_blocks=6, **fields)


def test_the_recipe_holds_what_was_confirmed_and_where():
    recipe = writing.recipe_of(study())
    assert recipe.settings == {"env.OMP_SCHEDULE": "x y", "loader.num_workers": 4, "loader.pin_memory": True}
    assert recipe.recipe.speedup == 1.42 and recipe.recipe.ci == (1.38, 1.47) and recipe.recipe.num_pairs == 8
    assert recipe.recipe.command == COMMAND and recipe.recipe.created == "2026-01-01T00:15:00Z"
    assert recipe.facts.pop("command_hash") == checking.command_hash(COMMAND)
    assert recipe.facts == {
        "gpu": "NVIDIA H200", "gpu_count": 1, "driver": "570.1", "torch": "2.11.0+cu130", "cuda": "13.0",
        "python": "3.11.9", "cpu": "EPYC", "num_cores": 16,
    }  # fmt: skip
    assert recipe.about["loader.num_workers"].startswith("Number of processes that load batches")


def test_placeholders_of_the_command_keep_the_value_that_was_compared_with(tmp_path):
    batch = Setting("arg.batch", "32"), Setting("arg.batch", "64")
    recipe = writing.recipe_of(study(settings=[batch[0]], recipe=[batch[1], WORKERS]))
    assert recipe.settings["arg.batch"] == "64" and recipe.recipe.baseline == ["arg.batch=32"]
    recipes.write(tmp_path / "recipe.toml", recipe)
    again = recipes.read(tmp_path / "recipe.toml")
    assert checking.baseline(again, "recipe.toml") == [batch[0]]
    # Of another's recipe only what fills a placeholder is taken, and no path.
    foreign = replace(again, recipe=replace(again.recipe, baseline=["loader.num_workers=4"]))
    assert checking.baseline(foreign, "recipe.toml") == []
    for text in ("python=/tmp/python", "git.ref=main", "arg.file=/etc/passwd", "arg.file=evil.py"):
        with pytest.raises(UsageError, match="foreign"):
            checking.baseline(replace(again, recipe=replace(again.recipe, baseline=[text])), "recipe.toml")


def test_each_setting_is_proved_by_the_last_ablation_that_left_it_out():
    whole = [WORKERS, SPACED, PINNED]
    estimates = [
        ablated(whole, SPACED, 1.9),
        ablated(whole, SPACED, 1.2),
        ablated(whole, WORKERS, 1.3, phase="switch"),
        Estimate(arm=arm(whole).key, against="", phase="prune", speedup=9.0, ci=(8.0, 10.0), num_blocks=6),
    ]
    proofs = {proof.knob: proof for proof in writing.recipe_of(study(estimates=estimates)).proof}
    assert (
        proofs["env.OMP_SCHEDULE"].speedup,
        proofs["env.OMP_SCHEDULE"].by,
        proofs["env.OMP_SCHEDULE"].num_pairs,
    ) == (1.2, "ablation", 6)
    assert (proofs["loader.num_workers"].speedup, proofs["loader.num_workers"].by) == (1.42, "confirmation")
    assert (proofs["env.OMP_SCHEDULE"].effect, proofs["loader.num_workers"].effect) == ("exact", "sampling")


def test_an_ablation_that_was_written_the_other_way_round_is_turned():
    whole = [WORKERS, SPACED]
    turned = ablated(whole, SPACED, 0.5, arm=without(whole, "env.OMP_SCHEDULE"), against=arm(whole).key)
    (proof, _) = writing.recipe_of(study(recipe=[WORKERS, SPACED], estimates=[turned])).proof
    assert proof.speedup == pytest.approx(2.0)
    assert proof.ci == pytest.approx((2 / 1.1, 2 * 1.1))


def first(*settings, **changes):
    """What a recipe of these settings states, proved here."""
    known = study(
        recipe=list(settings), selected=list(settings), confirmed=compared(speedup=2.0, ci=(1.9, 2.1))
    )
    recipe = writing.recipe_of(known)
    return replace(recipe, recipe=replace(recipe.recipe, **changes))


def on_top(recipe, **changes):
    """A study that began from this recipe, and proved PINNED on top."""
    base_recipe, base = BaseRecipe("first.toml", recipe), checking.settings(recipe, "first.toml").applied
    return study(recipe=[PINNED], selected=[PINNED], base_recipe=base_recipe, settings=base, **changes)


def test_a_recipe_that_went_on_from_another_holds_both_and_the_gain_of_both():
    recipe = writing.recipe_of(on_top(first(SPACED)))
    assert recipe.settings == {"env.OMP_SCHEDULE": "x y", "loader.pin_memory": True}
    assert recipe.recipe.speedup == pytest.approx(2.84) and recipe.recipe.num_pairs is None
    low, high = recipe.recipe.ci
    # Wider than either by itself, narrower than both ends at once.
    assert 1.9 * 1.38 < low < 2.84 * 1.9 / 2 and 2.84 * 2.1 / 2 < high < 2.1 * 1.47
    assert [(proof.knob, proof.speedup, proof.by) for proof in recipe.proof] == [
        ("env.OMP_SCHEDULE", 2.0, "confirmation"), ("loader.pin_memory", 1.42, "ablation"),
    ]  # fmt: skip


def test_another_value_of_a_setting_that_it_began_from_takes_its_place():
    recipe = writing.recipe_of(on_top(first(Setting("loader.pin_memory", False))))
    assert recipe.settings == {"loader.pin_memory": True}
    assert [proof.value for proof in recipe.proof] == [True]


def edited(recipe, **settings):
    return replace(recipe, settings={**recipe.settings, **settings})


@pytest.mark.parametrize(
    "recipe",
    [
        replace(first(SPACED), recipe=Header(schema=recipes.SCHEMA)),
        first(SPACED, ci=None),
        first(SPACED, objective="memory"),
        first(SPACED, caches="cold"),
        first(SPACED, step_function="a:b"),
        first(SPACED, speedup=1e300, ci=(1e-300, 1e305)),
        edited(first(SPACED), **{"env.OMP_DYNAMIC": "true"}),
        edited(first(SPACED), **{"env.OMP_SCHEDULE": "by hand"}),
        replace(first(SPACED, WORKERS), settings={"env.OMP_SCHEDULE": "x y"}),
        replace(first(SPACED), facts={**first(SPACED).facts, "gpu": "NVIDIA T4"}),
        first(SPACED, command=["python", "other.py"]),
        replace(first(SPACED), facts={}),
    ],
)
def test_of_a_recipe_that_was_not_proved_so_nothing_is_stated(recipe, tmp_path):
    """Not here, not on this command, not of these settings, or not as this study measured."""
    both = writing.recipe_of(on_top(recipe))
    assert (both.recipe.speedup, both.recipe.ci, both.recipe.num_pairs) == (None, None, None)
    assert both.settings == {**recipe.settings, "loader.pin_memory": True}
    stated = [proof.knob for proof in both.proof]
    assert stated == ["loader.pin_memory"] or recipe.recipe.speedup == 1e300 or recipe.recipe.ci is None
    recipes.write(tmp_path / "recipe.toml", both)
    assert recipes.read(tmp_path / "recipe.toml").settings == both.settings


@given(st.floats(1.01, 9), st.floats(1.01, 9), st.floats(1.001, 2), st.floats(1.001, 2))
def test_the_interval_of_both_gains_holds_their_product(one, other, widely, more_widely):
    recipe = first(SPACED, speedup=one, ci=(one / widely, one * more_widely))
    confirmed = compared(speedup=other, ci=(other / more_widely, other * widely))
    head = writing.recipe_of(on_top(recipe, confirmed=confirmed)).recipe
    assert head.speedup == pytest.approx(one * other) and head.ci[0] <= head.speedup <= head.ci[1]


def test_a_round_that_did_not_let_a_setting_stay_is_no_proof_of_it():
    refused = replace(ablated([WORKERS, SPACED], SPACED, 0.74), p=0.9)
    (proof,) = writing.recipe_of(study(recipe=[SPACED], estimates=[refused])).proof
    assert (proof.speedup, proof.by) == (1.42, "confirmation")


@pytest.mark.parametrize(
    "changes",
    [{"recipe": None}, {"recipe": []}, {"confirmed": None}, {"confirmed": compared(verdict="undecided")}],
)
def test_a_study_that_proved_nothing_has_no_recipe(changes):
    with pytest.raises(UsageError, match="Nothing was proved"):
        writing.recipe_of(study(**changes))


def test_the_recipe_of_a_study_can_be_read_and_applied(tmp_path):
    recipes.write(tmp_path / "recipe.toml", writing.recipe_of(study()))
    found = recipes.read(tmp_path / "recipe.toml")
    assert checking.settings(found, "it").applied == sorted(
        [WORKERS, SPACED, PINNED], key=lambda setting: setting.knob
    )
    assert checking.differences(found, FACTS, COMMAND, strict=True) == []
    assert checking.unproved(found) == []


def test_of_a_recipe_that_was_not_applied_whole_nothing_is_stated():
    """A variable that was left out is no part of the gain, though the recipe that is begun from has its
    proof."""
    whole = first(SPACED, Setting("env.A", "1"))
    study = on_top(whole)
    study = replace(study, run=replace(study.run, settings=[SPACED]))
    assert writing.recipe_of(study).recipe.speedup is None


# From the recipe to settings


def recipe(settings=None, **facts):
    head = Header(recipes.SCHEMA, command=COMMAND)
    return Recipe(head, settings or {}, facts=writing.facts_to_keep(FACTS, COMMAND) | facts)


@pytest.mark.parametrize(
    ("knob", "value", "said"),
    [
        ("loader.num_worker", 2, "no knob 'loader.num_worker'"),
        ("loader.num_workers", 2.5, "cannot be '2.5'"),
        ("loader.num_workers", True, "cannot be 'true'"),
        ("env.A", "a\nb", "do not print"),
        ("env.A\u202e", "x", "is no knob"),
        ("env.A=B", "x", "is no knob"),
    ],
)
def test_a_setting_that_cannot_be_applied_names_the_recipe(knob, value, said):
    with pytest.raises(UsageError, match=said) as error:
        checking.settings(recipe({"env.OMP_DYNAMIC": 1, knob: value}), "mine.toml")
    assert "mine.toml" in error.value.message
    assert error.value.message.isprintable()


def test_settings_that_only_the_user_may_set_are_left_out_with_the_option_to_type():
    found = recipe({"env.OMP_DYNAMIC": 1, "env.LD_PRELOAD": "x .so", "loader.num_workers": 2})
    applied, left_out = checking.settings(found, "mine.toml")
    assert [setting.knob for setting in applied] == ["env.OMP_DYNAMIC", "loader.num_workers"]
    why, option = checking.not_applied(left_out, "mine.toml")
    assert why.startswith("mine.toml: not applied") and "foreign code" in why
    assert option.strip() == "--set 'env.LD_PRELOAD=x .so'"
    typed = [Setting("env.LD_PRELOAD", "mine.so")]
    assert checking.settings(found, "mine.toml", typed) == ([applied[0], typed[0], applied[1]], [])
    assert checking.not_applied([], "mine.toml") == []


def test_a_value_that_was_changed_by_hand_is_unproved():
    proof = Proof("loader.num_workers", 1.3, (1.2, 1.4), 6, "sampling", value=4)
    edited = replace(recipe({"loader.num_workers": 8, "env.A": "1"}), proof=[proof])
    assert checking.unproved(edited) == [
        "loader.num_workers=8 is unproved: loader.num_workers=4 is what was proved",
        "env.A=1 is unproved: no proof belongs to it",
    ]
    assert checking.unproved(replace(edited, settings={"loader.num_workers": "4"})) == []


# Here and there


def said(recipe, facts=FACTS, command=COMMAND, **asked):
    return [str(differs) for differs in checking.differences(recipe, facts, command, **asked)]


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        ("gpu.name", "NVIDIA A100", "GPU differs: NVIDIA H200 where it was proved, NVIDIA A100 here"),
        ("gpu.count", 2, "number of GPUs differs: 1 where it was proved, 2 here"),
        ("gpu.driver", "580.2", "driver differs: 570.1 where it was proved, 580.2 here"),
        ("torch.version", "2.13.0", "torch differs: 2.11.0+cu130 where it was proved, 2.13.0 here"),
        ("host.num_cores", 2, "number of usable cores differs: 16 where it was proved, 2 here"),
        (
            "gpu.driver",
            Unknown("it is silent"),
            "driver differs: 570.1 where it was proved, unknown (it is silent) here",
        ),
    ],
)
def test_recipe_check_says_a_difference_from_what_to_what(fact, value, text):
    assert said(recipe(), FACTS | {fact: value}) == [text]
    assert said(recipe(), FACTS | {"python.version": "3.12.0"}) == []


def test_recipe_check_names_only_the_number_of_gpus_when_there_is_none():
    assert said(
        recipe(), FACTS | {name: NO_GPU[name] for name in ("gpu.count", "gpu.name", "gpu.driver")}
    ) == ["number of GPUs differs: 1 where it was proved, 0 here"]
    without = Recipe(Header(recipes.SCHEMA, command=COMMAND), facts=writing.facts_to_keep(NO_GPU, COMMAND))
    assert said(without, NO_GPU, strict=True) == []


def test_recipe_check_counts_facts_that_the_recipe_lacks_only_when_it_is_strict():
    bare = Recipe(Header(recipes.SCHEMA))
    assert said(bare) == []
    assert "torch: the recipe does not name the one it was proved on" in said(bare, strict=True)
    assert "command: the recipe does not name the one it was proved on" in said(bare, strict=True)


@pytest.mark.parametrize(
    "other",
    [
        ["/venv/bin/python3.12", "src/train.py", "--batch", "32", "--data", "~/coco.yaml"],
        ["python3", "./train.py", "--batch", "32", "--data", "../x/coco.yaml"],
    ],
)
def test_a_command_in_other_folders_is_the_same(other):
    assert checking.command_differs(recipe(), other) is None
    assert checking.command_hash(other) == checking.command_hash(COMMAND)


@pytest.mark.parametrize(
    ("other", "proved", "here"),
    [
        ([*COMMAND[:3], "64", *COMMAND[4:]], "--batch 32", "--batch 64"),
        ([*COMMAND, "--amp"], "nothing", "--amp"),
        (COMMAND[:2], "--batch 32 --data /data/coco.yaml", "nothing"),
        (["python", "test.py", *COMMAND[2:]], "train.py", "test.py"),
        (["torchrun", *COMMAND[1:]], "python", "torchrun"),
        ([*COMMAND[:5], "/data/voc.yaml"], "--data /data/coco.yaml", "--data /data/voc.yaml"),
    ],
)
def test_another_command_is_told_by_what_differs(other, proved, here):
    differs = checking.command_differs(recipe(), other)
    assert (differs.proved, differs.here) == (proved, here)
    assert checking.command_hash(other) != checking.command_hash(COMMAND)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["python", "-c", "print(1/2)"], ["python", "-c", "print(2/2)"]),
        (["python", "t.py", "lr=1/2"], ["python", "t.py", "lr=2/2"]),
        (["python", "t.py", "facebook/opt-1.3b"], ["python", "t.py", "google/opt-1.3b"]),
        (["python", "t.py", "--data=/a/x"], ["python", "t.py", "--data=/a/y"]),
        (["pypy", "t.py"], ["python", "t.py"]),
    ],
)
def test_command_hash_differs_when_words_that_are_no_folder_differ(one, other):
    assert checking.command_hash(one) != checking.command_hash(other)


def test_a_recipe_that_keeps_only_the_hash_of_its_command_knows_it_again():
    hashed = Recipe(Header(recipes.SCHEMA), facts={"command_hash": checking.command_hash(COMMAND)})
    assert checking.command_differs(hashed, COMMAND) is None
    assert "its hash alone" in str(checking.command_differs(hashed, COMMAND[:2]))


WORDS = st.lists(st.text("a/.=-1~ ", max_size=4), min_size=1, max_size=4)


@given(WORDS, WORDS)
def test_commands_differ_exactly_where_their_hashes_do(one, other):
    there = Recipe(Header(recipes.SCHEMA, command=one))
    assert (checking.command_differs(there, other) is None) == (
        checking.command_hash(one) == checking.command_hash(other)
    )
    assert checking.command_differs(there, one) is None


# Proved again


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        ({"speedup": 1.40, "ci": (1.30, 1.50)}, "met"),
        ({"speedup": 1.60, "ci": (1.55, 1.65)}, "met"),
        ({"speedup": 1.38, "ci": (1.20, 1.60)}, "met"),
        ({"speedup": 1.20, "ci": (1.05, 1.45)}, "undecided"),
        ({"speedup": 1.20, "ci": (1.15, 1.25)}, "not-met"),
        ({"verdict": "same", "speedup": 1.001, "ci": (0.995, 1.007)}, "not-met"),
        ({"verdict": "slower", "speedup": 0.8, "ci": (0.7, 0.9)}, "not-met"),
        ({"verdict": "undecided", "speedup": 1.5, "ci": (0.9, 2.5)}, "undecided"),
        ({"verdict": "undecided", "speedup": None, "ci": None}, "undecided"),
    ],
)
def test_a_speed_up_is_met_by_one_that_is_not_below_the_stated_interval(now, outcome):
    stated = Recipe(Header(recipes.SCHEMA, speedup=1.42, ci=(1.38, 1.47)))
    assert judge_recipe(stated, compared(**now))[0] == outcome


@pytest.mark.parametrize("within", [True, False])
def test_runs_that_gain_less_than_steps_did_are_told_what_steps_leave_out(within):
    stated = Recipe(Header(recipes.SCHEMA, speedup=2.63, ci=(2.48, 2.79), within=within))
    outcome, reason = judge_recipe(stated, compared(speedup=1.83, ci=(1.46, 2.29)))
    assert outcome == "not-met" and ("steps alone" in reason) is within


def test_a_recipe_that_was_not_applied_whole_is_not_refuted():
    stated = Recipe(Header(recipes.SCHEMA, speedup=1.42, ci=(1.38, 1.47)))
    slow = compared(verdict="same", speedup=1.0, ci=(0.99, 1.01))
    assert judge_recipe(stated, slow, is_whole=False)[0] == "undecided"
    assert judge_recipe(stated, compared(), is_whole=False)[0] == "met"


def test_a_recipe_that_states_nothing_is_met_by_any_gain():
    assert judge_recipe(Recipe(Header(recipes.SCHEMA)), compared(speedup=1.02, ci=(1.01, 1.03)))[0] == "met"
    assert judge_recipe(Recipe(Header(recipes.SCHEMA)), compared(verdict="same"))[0] == "not-met"


def test_an_interval_is_not_needed_to_state_a_speed_up():
    stated = Recipe(Header(recipes.SCHEMA, speedup=1.42))
    assert judge_recipe(stated, compared(speedup=1.41, ci=(1.3, 1.5)))[0] == "undecided"


# Settings that may change results


def test_exact_divides_settings_by_the_catalogue_whatever_a_recipe_states():
    rounding = Setting("compile.mode", "default")
    stated = Proof("compile.mode", 2.0, (1.9, 2.1), 4, "exact", value="default")
    made = Recipe(
        Header(schema=recipes.SCHEMA), {"compile.mode": "default", "loader.num_workers": 4}, [stated]
    )
    chosen, _ = checking.settings(made, "r.toml")
    assert checking.exact(chosen) == ([WORKERS], [rounding])
    assert checking.effects(made) == {"compile.mode": "numerics", "loader.num_workers": "sampling"}
    with pytest.raises(UsageError, match="--exact forbids"):
        checking.exact(chosen, [rounding])


def test_a_recipe_states_the_effect_of_a_setting_when_no_proof_does():
    text = recipes.text(writing.recipe_of(based_on_rounding()))
    assert "Effect: results may differ by rounding." in " ".join(text.replace("#", "").split())


def based_on_rounding() -> Study:
    """A study on top of a recipe with a setting that rounds and has no proof of its own."""
    made = study()
    first = BaseRecipe("first.toml", Recipe(Header(schema=recipes.SCHEMA), {"compile.mode": "default"}))
    return replace(
        made, base_recipe=first, run=replace(made.run, settings=[Setting("compile.mode", "default")])
    )
