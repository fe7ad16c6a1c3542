"""What a finding means, from its rule, and what people believe of it."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap

from dynotune.doctor import folklore
from dynotune.doctor.registry import Rule, all_rules
from dynotune.schema.errors import UsageError
from dynotune.schema.explanation import Explained, Explanation
from dynotune.schema.setting import UNSET, Setting

MOST_NEAR = 3


def explain(word: str) -> Explanation:
    """A finding by its id, with what people believe of it; or a popular remedy by its name.

    Raises:
        UsageError: neither is known; the nearest names are offered.
    """
    rules = all_rules()
    id_ = word.strip().lower().replace("_", "-")
    if id_ in rules:
        return Explanation(asked=word, finding=explained(rules[id_]), folklore=folklore.about_finding(id_))
    found = folklore.by_name(word)
    if found:
        return Explanation(asked=word, folklore=found)
    names = [*rules, *(name for entry in folklore.entries() for name in [entry.folklore.id, *entry.folklore.about])]
    raise UsageError(f"Nothing is known of {word!r} here.", hint=_nearest(word, names))


def explained(rule: Rule) -> Explained:
    """A rule's docstring, and the settings that it may name."""
    return Explained(
        id=rule.id,
        title=rule.title,
        scope=rule.scope,
        family=rule.family,
        sees=rule.sees,
        costs=rule.costs,
        wrong=rule.wrong,
        explains=list(rule.explains),
        settings=_settings(rule),
    )


def _settings(rule: Rule) -> list[str]:
    """Knobs that stand in its source: by `Setting("knob", value)`, or `unset("NAME")`, which takes a variable away.

    Where a name is computed it is not found: this is for readers, not for deciding.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule.judge)))
    found: list[str] = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        literal = [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        if called == "Setting" and literal and isinstance(call.args[0], ast.Constant):
            found.append(_setting(literal[0], call.args[1:]))
        elif called == "unset":
            found += [f"env.{name}={UNSET}" for name in literal]
    return list(dict.fromkeys(found))


def _setting(knob: str, rest: list[ast.expr]) -> str:
    value = rest[0].value if rest and isinstance(rest[0], ast.Constant) else None
    return str(Setting(knob, value)) if isinstance(value, bool | int | float | str) else knob


def _nearest(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word.lower(), {name.lower(): None for name in names}, n=MOST_NEAR, cutoff=0.5)
    near += [name for name in names if name not in near and len(word) > 2 and word.lower() in name.lower()]
    listed = "docs/reference/findings.md lists them all."
    return f"Did you mean {' or '.join(near[:MOST_NEAR])}? {listed}" if near else listed
