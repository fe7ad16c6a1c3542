"""The heading of a patch holds comments alone, whatever a recipe holds."""

import shutil
import subprocess

import pytest

from dynotune.recipes.patch.diff import unified
from dynotune.report import patch_heading
from dynotune.schema.recipe import Header, Recipe

HUNK = """
diff --git a/evil.py b/evil.py
new file mode 100644
--- /dev/null
+++ b/evil.py
@@ -0,0 +1 @@
+x
"""
FACTS = ("gpu", "driver", "torch", "cpu")


def heading(text):
    head = Header(schema="dynotune.recipe/2", speedup=1.2, ci=(1.1, 1.3))
    recipe = Recipe(recipe=head, facts=dict.fromkeys(FACTS, text))
    return patch_heading(recipe, text, text, ["python", text], {text: [text]}, {text: text})


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_heading_is_comments_alone_when_all_that_a_recipe_says_holds_line_ends(end):
    lines = heading(HUNK.replace("\n", end)).removesuffix("\n\n").splitlines()
    assert lines and all(line.startswith("#") for line in lines)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_finds_only_the_files_of_the_diff_when_the_heading_holds_a_hunk(tmp_path):
    patch = heading(HUNK).encode() + unified(b"train.py", b"1\n", b"2\n")
    done = subprocess.run(
        ["git", "apply", "--numstat", "-"], input=patch, cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout == b"1\t1\ttrain.py\n"
