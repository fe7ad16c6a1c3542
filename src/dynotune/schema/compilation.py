"""Compilations by torch.compile, as the agent counted them."""

import msgspec

from dynotune.schema.facts import Unknown

NOT_COMPILED = Unknown("torch.compile was not used")
"""Compilation of a program that compiles nothing, unlike one whose compilation is not known."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True, tag="compilation"):
    """Compilations by torch.compile in the process.

    Args:
        num_graphs, num_graph_breaks, num_recompilations: counts since the start; `…_in_window`: counts in the
            window.
        breaks, recompilations: reasons of graph breaks and recompilations, most frequent first: "3x torch/…:
            reason".
        limit_reached: functions that reached the limit of recompilations and have run eagerly since then.
        cudagraph_skips: reasons why CUDA graphs were not used.
        skipped: reasons why functions were not compiled at all, for instance a break inside a loop.
        num_cudagraphs_in_window: CUDA graphs that torch.compile recorded within the window; None if not
            known.
    """

    num_graphs: int
    num_graph_breaks: int
    num_recompilations: int
    num_compilations_in_window: int
    breaks: list[str] = []
    recompilations: list[str] = []
    limit_reached: list[str] = []
    cudagraph_skips: list[str] = []
    modes: list[str] = []
    skipped: list[str] = []
    num_cudagraphs_in_window: int | None = None
