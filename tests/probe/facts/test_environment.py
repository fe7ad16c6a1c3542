from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from dynotune.probe import environment
from dynotune.schema.facts import Unknown


def test_a_named_variable_that_is_not_set_is_none():
    assert environment.facts({})["env.OMP_NUM_THREADS"] is None


def test_a_variable_with_a_known_prefix_is_reported_with_its_value():
    facts = environment.facts({"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "4"})
    assert facts["env.NCCL_DEBUG"] == "TRACE"
    assert facts["env.OMP_NUM_THREADS"] == "4"


def test_other_variables_and_secrets_are_left_out():
    facts = environment.facts(
        {"HOME": "/home/me", "HF_TOKEN": "x", "TORCH_HUB_TOKEN": "x", "YOLO_API_KEY": "x"}
    )
    assert not {"env.HOME", "env.HF_TOKEN", "env.TORCH_HUB_TOKEN", "env.YOLO_API_KEY"} & facts.keys()


def test_every_variable_says_why_it_matters():
    assert all({**environment.NAMES, **environment.PREFIXES}.values())


def test_a_named_variable_is_told_though_its_name_holds_a_secret_word():
    assert environment.facts({"TOKENIZERS_PARALLELISM": "false"})["env.TOKENIZERS_PARALLELISM"] == "false"


def test_a_login_inside_an_address_is_hidden():
    facts = environment.facts({"TORCHINDUCTOR_REDIS_URL": "redis://me:word@cache:6379/0"})
    assert facts["env.TORCHINDUCTOR_REDIS_URL"] == "redis://…@cache:6379/0"


def test_a_variable_that_is_no_text_can_be_written_down():
    facts = environment.facts({"NCCL_DEBUG_FILE": os.fsdecode(b"/tmp/\xff")})
    assert facts["env.NCCL_DEBUG_FILE"] == "/tmp/\ufffd"


def chain(root, *processes):
    """Processes from the oldest on, each the child of the one before; None is an environment not to be
    read."""
    parent = 0
    for pid, name, env in processes:
        root.process(pid, parent=parent, name=name)
        if env is not None:
            root.write(f"proc/{pid}/environ", "".join(f"{key}={value}\0" for key, value in env.items()))
        parent = pid


def test_a_variable_comes_from_the_oldest_process_that_was_started_with_it(root):
    late = {"OMP_NUM_THREADS": "4"}
    chain(
        root,
        (1, "init", {}),
        (20, "sshd", {}),
        (30, "bash", late),
        (40, "make", late),
        (50, "dynotune", late),
    )
    assert environment.origins(late, 50, root.path) == {
        "env_from.OMP_NUM_THREADS": "inherited from pid 30 (bash)"
    }


def test_a_variable_that_only_the_last_process_has_was_set_by_the_shell(root):
    late = {"OMP_NUM_THREADS": "4"}
    chain(root, (1, "init", {}), (30, "bash", {}), (50, "dynotune", late))
    assert (
        environment.origins(late, 50, root.path)["env_from.OMP_NUM_THREADS"] == "set by this shell or after"
    )
    assert environment.origins({"NCCL_DEBUG": "INFO"}, 50, root.path) == {
        "env_from.NCCL_DEBUG": "set by this shell or after"
    }


def test_another_value_above_is_another_origin(root):
    chain(
        root,
        (1, "init", {"OMP_NUM_THREADS": "1"}),
        (30, "bash", {"OMP_NUM_THREADS": "4"}),
        (50, "dynotune", {"OMP_NUM_THREADS": "4"}),
    )
    facts = environment.origins({"OMP_NUM_THREADS": "4"}, 50, root.path)
    assert facts["env_from.OMP_NUM_THREADS"] == "inherited from pid 30 (bash)"


def test_above_a_process_that_cannot_be_read_more_may_have_had_it(root):
    late = {"OMP_NUM_THREADS": "4"}
    chain(root, (1, "init", {}), (20, "sudo", None), (30, "bash", late), (50, "dynotune", late))
    facts = environment.origins(late, 50, root.path)
    assert facts["env_from.OMP_NUM_THREADS"] == "inherited from pid 30 (bash) or before"


def test_a_shell_that_cannot_be_read_leaves_the_origin_of_what_it_handed_on_unknown(root):
    late = {"OMP_NUM_THREADS": "4"}
    chain(root, (1, "init", {}), (20, "sudo", None), (50, "dynotune", late))
    facts = environment.origins(late | {"NCCL_DEBUG": "INFO"}, 50, root.path)
    assert isinstance(facts["env_from.OMP_NUM_THREADS"], Unknown)
    assert facts["env_from.NCCL_DEBUG"] == "set by this shell or after"


def test_without_proc_the_origin_is_unknown(root):
    assert isinstance(environment.origins({"RANK": "0"}, 50, root.path)["env_from.RANK"], Unknown)
    chain(root, (50, "dynotune", None))
    assert isinstance(environment.origins({"RANK": "0"}, 50, root.path)["env_from.RANK"], Unknown)


def test_secrets_have_no_origin_either(root):
    chain(root, (50, "dynotune", {}))
    assert environment.origins({"TORCH_HUB_TOKEN": "x", "HOME": "/"}, 50, root.path) == {}


def test_a_real_shell_that_exports_and_one_that_inherits():
    script = (
        "import json, os\nfrom dynotune.probe import "
        "environment\nprint(json.dumps(environment.origins(os.environ, "
        "os.getpid())))"
    )
    # `:` keeps the shell from replacing itself by Python.
    line = f"export NCCL_DEBUG=WARN; {sys.executable} -c '{script}'; :"
    reply = subprocess.run(
        ["sh", "-c", line], env={**os.environ, "OMP_NUM_THREADS": "3"}, capture_output=True, check=True
    )
    found = json.loads(reply.stdout)
    assert found["env_from.NCCL_DEBUG"] == "set by this shell or after"
    assert re.fullmatch(r"inherited from pid \d+ \(\w+\)( or before)?", found["env_from.OMP_NUM_THREADS"])
