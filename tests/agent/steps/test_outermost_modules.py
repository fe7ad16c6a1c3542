"""Calls of outermost modules, seen without standing in anybody's way. Modules in place of torch's."""

import _thread
import functools
import gc
import threading
from types import SimpleNamespace

import pytest

from dynotune.agent.steps.outermost_modules import MOST_TRIES, OutermostModules


@pytest.fixture
def torch():
    class Module:
        def __init__(self, forward=None):
            self._forward = forward

        def __call__(self, *args):
            return self._forward(*args) if self._forward else args

        def modules(self):
            yield self
            if isinstance(self._forward, Module):
                yield from self._forward.modules()

    return SimpleNamespace(
        nn=SimpleNamespace(Module=Module),
        compiler=SimpleNamespace(is_compiling=lambda: False),
        is_grad_enabled=lambda: False,
    )


@pytest.fixture
def seen(torch):
    """What OutermostModules told: `first`, `ran`, `called` and `errors`; `roots` itself."""
    seen = SimpleNamespace(first=[], ran=[], called=[], errors=[])
    seen.roots = OutermostModules(
        torch,
        lambda module: seen.first.append(type(module).__name__),
        lambda module: seen.ran.append(type(module).__name__),
        lambda module, args, kwargs: seen.called.append(type(module).__name__),
        None,
        lambda where, error: seen.errors.append(error),
    )
    seen.roots.watch_all()
    return seen


def make(torch, name, *bases):
    return type(name, bases or (torch.nn.Module,), {})


def test_sees_the_outermost_module_alone(torch, seen):
    inner = make(torch, "Inner")()
    assert make(torch, "Outer")(inner)(3) == (3,)
    assert (seen.first, seen.called) == (["Outer"], ["Outer"])


def test_a_call_that_raises_leaves_its_thread_free(torch, seen):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(torch, "Interrupted")(interrupt)()
    make(torch, "Net")()()
    assert seen.called == ["Net"]


def test_a_first_call_has_run_when_one_returns(torch, seen):
    fails = [True]

    def forward():
        assert seen.ran == []
        if fails.pop():
            raise MemoryError

    net = make(torch, "Net")(forward)
    with pytest.raises(MemoryError):
        net()
    assert (seen.first, seen.ran) == (["Net"], [])
    fails[:] = [False]
    net()
    net._forward = None
    net()
    assert (seen.first, seen.ran, len(seen.called)) == (["Net"], ["Net"], 2)


@pytest.fixture
def quick_collections():
    """What is alive already is not looked at again: the tests' own libraries are most of it."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_module_at_the_address_of_one_that_died_is_met_too(torch, seen, quick_collections):
    net = make(torch, "Net")
    addresses = set()
    for _ in range(50):
        module = net()
        addresses.add(id(module))
        module()
        del module
        gc.collect()
    assert len(addresses) < 50, "no address came twice: this shows nothing"
    assert len(seen.first) == 50


def test_uncovers_all_but_what_the_step_needs(torch, seen):
    net, other = make(torch, "Net"), make(torch, "Other")
    seen.roots.watch_only({net})
    assert torch.nn.Module.__call__ is seen.roots.original
    net()()
    other()()
    assert seen.called == ["Net"]
    seen.roots.watch_only(set())
    assert "__call__" not in vars(net)


@pytest.mark.parametrize("end", ["watch_only", "compilation_begins", "pause"])
def test_a_cover_that_the_program_put_on_ours_stays(end, torch, seen):
    ours, theirs = torch.nn.Module.__call__, []

    def cover(module, *args):
        theirs.append(module)
        return ours(module, *args)

    torch.nn.Module.__call__ = cover
    if end == "watch_only":
        seen.roots.watch_only(set())
    elif end == "compilation_begins":
        seen.roots.compilation_begins()
    else:
        seen.roots.pause(lambda: None)()
    assert torch.nn.Module.__call__ is cover
    make(torch, "Net")()()
    assert len(theirs) == 1


def test_a_cover_that_the_program_put_on_one_class_stays(torch, seen):
    net = make(torch, "Net")
    seen.roots.watch_only({net})
    ours, theirs = net.__call__, []

    def cover(module, *args):
        theirs.append(module)
        return ours(module, *args)

    net.__call__ = cover
    seen.roots.watch_only(set())
    net()()
    assert len(theirs) == 1


def test_replicas_of_data_parallel_are_no_roots(torch, seen):
    replica = make(torch, "Replica")()
    replica._is_replica = True
    thread = threading.Thread(target=replica)
    thread.start()
    thread.join()
    assert (seen.first, seen.called) == ([], [])


def test_module_called_during_construction_is_no_root_until_the_program_calls_it(torch, seen):
    layer = make(torch, "Layer")()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__(layer)
            self.learn_stride()

        def learn_stride(self):
            layer(1)

    net = Net()
    assert (seen.first, seen.called) == ([], [])
    net(2)
    layer(3)
    assert (seen.first, seen.called) == (["Net", "Layer"], ["Net", "Layer"])


def test_a_part_is_met_again_when_it_is_called_by_itself_after_the_whole(torch, seen):
    inner = make(torch, "Inner")()
    outer = make(torch, "Outer")(inner)
    for net in (inner, inner, outer, inner, inner, outer):
        net(1)
    assert seen.first == seen.ran == ["Inner", "Outer", "Inner"]


def test_a_module_whose_constructor_trains_is_one_whose_parts_are_roots(torch, seen):
    net = make(torch, "Net")()

    class Experiment(torch.nn.Module):
        def __init__(self):
            for _ in range(300):
                net(1)

    Experiment()
    assert seen.first == ["Net"] and len(seen.called) == 300 - MOST_TRIES


def test_a_part_that_many_parts_share_is_no_root_either_while_all_are_tried_out(torch, seen):
    shared = make(torch, "SiLU")()
    layers = [make(torch, "Layer")(shared) for _ in range(2 * MOST_TRIES)]

    class Net(torch.nn.Module):
        def __init__(self):
            for layer in layers:
                layer(1)

    Net()
    assert seen.first == []


def test_constructors_of_mixins_and_decorated_ones_make_modules_too(torch, seen):
    layer = make(torch, "Layer")()

    def logged(function):
        @functools.wraps(function)
        def __init__(self):
            function(self)

        return __init__

    class Stride:
        def __init__(self):
            layer(1)

    class Net(Stride, torch.nn.Module):
        pass

    class Logged(torch.nn.Module):
        @logged
        def __init__(self):
            layer(1)

    Net(), Logged()
    assert seen.first == []


def test_frames_and_objects_of_the_program_are_asked_nothing(torch, seen):
    net = make(torch, "Net")()

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("not set up yet")

        def __init__(self):
            mine = locals()
            later = 1
            net(later)
            changed.append("later" in mine)

    changed: list[bool] = []
    Proxy()
    assert (seen.called, seen.errors, changed) == (["Net"], [], [False])


def test_a_thread_may_begin_with_a_call(torch, seen):
    done = threading.Event()
    net = make(torch, "Net")(lambda *_: done.set())
    _thread.start_new_thread(net, (1,))
    assert done.wait(60)


def test_a_constructor_of_what_is_no_module_may_call_the_model(torch, seen):
    class Trainer:
        def __init__(self, model):
            model(1)

    Trainer(make(torch, "Net")())
    assert seen.called == ["Net"]


def test_threads_are_inside_calls_of_their_own(torch, seen):
    def in_another_thread(*_):
        thread = threading.Thread(target=make(torch, "Beside")())
        thread.start()
        thread.join()

    make(torch, "Net")(in_another_thread)()
    assert seen.called == ["Beside", "Net"]


def test_after_a_fork_no_thread_that_is_gone_is_inside_a_call(torch, seen):
    seen.roots._busy.add(-1)
    seen.roots.reset_after_fork()
    assert seen.roots._busy == set()


def test_a_mistake_of_the_agents_is_logged_and_the_call_stands(torch, seen):
    seen.roots._first = seen.roots.after = lambda *_: 1 / 0
    assert make(torch, "Net")()(3) == (3,)
    assert [type(error) for error in seen.errors] == [ZeroDivisionError] * 2
