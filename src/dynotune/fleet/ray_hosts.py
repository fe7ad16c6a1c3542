"""Use the nodes of a Ray cluster as hosts of a study: an actor on each node runs blocks."""

import logging
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

from dynotune.schema.errors import CannotRunHere, DynotuneError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.study import BlockResult, HostBlock, Study

START_S = 120.0
"""Longest time for an actor to start on a node with free GPUs and to ask that node's torch for its facts."""
POLL_S, CONNECT_S = 0.5, 15.0
LINES = "On a node of the cluster: --ray auto, or --ray HOST:PORT of its head."


class RayHosts:
    """Run blocks by Ray on every other node of the cluster that is like this host.

    Args:
        address: address of the cluster, in the form that `ray.init` takes.
        worker: class of the actors. The constructor takes `run`, `typed` and `study`. The actor's method `do`
            runs a block; `refuse` raises DynotuneError on a node that is unlike this host.
        say: function that gets a message for each node that is left out, with the reason.

    Raises:
        UsageError: Ray is not installed.
        CannotRunHere: no cluster has this address, or the cluster has another version of Ray or Python.
    """

    def __init__(
        self,
        address: str,
        worker: type,
        run: RunSpec,
        typed: list[Any],
        study: Study,
        say: Callable[[str], None],
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                "--ray needs Ray, which is not installed.", hint="pip install 'dynotune[ray]'"
            ) from error
        self._ray, self._say, self._study, self._actors = ray, say, study, dict[str, Any]()
        # Nodes that share one folder need no copy of its files.
        for env in ({}, {"working_dir": str(run.cwd)}):
            self._connect(address, env)
            unlike = self._begin(ray.remote(worker), run, typed, study)
            if not unlike or env:
                break
            self.close()
        for name, why in unlike.items():
            say(f"Node {name} is left out: {why}")
        say(f"Blocks and pairs go to {len(self._actors)} more nodes of the Ray cluster.")

    def _connect(self, address: str, env: Mapping[str, str]) -> None:
        place = re.fullmatch(r"([^/\s]+):([0-9]{1,5})", address)
        if place is None and address != "auto":
            raise UsageError(f"--ray {address} is no address of a Ray cluster.", hint=LINES)
        try:
            if place is not None:
                # Ray itself would retry for minutes.
                socket.create_connection((place[1], int(place[2])), CONNECT_S).close()
            self._ray.init(address, runtime_env=dict(env), log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds of exceptions, some of them its own.
            why = str(error).strip().partition("\n")[0].rstrip(".")
            raise CannotRunHere(f"Ray cannot work with the cluster {address}: {why}.", hint=LINES) from error

    def _begin(self, remote: Any, run: RunSpec, typed: list[Any], study: Study) -> dict[str, str]:
        """Start an actor on each other node; return why each remaining node is left out."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        own, begun = self._ray.get_runtime_context().get_node_id(), {}
        for node in self._ray.nodes():
            if node["Alive"] and node["NodeID"] != own:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                gpus = node["Resources"].get("GPU", 0)
                actor = remote.options(scheduling_strategy=there, num_cpus=0, num_gpus=gpus).remote(
                    run, typed, study
                )
                begun[node["NodeID"]] = actor, actor.refuse.remote(study)
        unlike = {}
        for name, (actor, refused) in begun.items():
            try:
                self._ray.get(refused, timeout=START_S)
                self._actors[name] = actor
            except self._ray.exceptions.RayError as error:
                unlike[name] = _why(error)
        return unlike

    def close(self) -> None:
        self._actors.clear()
        self._ray.shutdown()

    # The same interface as `Hosts`.

    def save(self, study: Study) -> None:
        self._study = study

    def names(self) -> list[str]:
        return sorted(self._actors)

    def run(self, host: str, block: HostBlock, go_on: Callable[[], None]) -> BlockResult | None:
        for name in (host, *self.names()):
            if (actor := self._actors.get(name)) is None:
                continue
            try:
                found = actor.do.remote(self._study, block)
                while not self._ray.wait([found], timeout=POLL_S)[0]:
                    go_on()
                result: BlockResult = self._ray.get(found)
                return result
            except self._ray.exceptions.RayError as error:
                if self._actors.pop(name, None) is not None:
                    self._say(f"Node {name} is left out: {_why(error)}")
        return None


def _why(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    if isinstance(cause, DynotuneError):
        return cause.message
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
