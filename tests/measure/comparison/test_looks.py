from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from dynotune.measure.comparison.looks import SPENT, critical_constant, nominal_levels
from dynotune.measure.comparison.schedule import looks


@pytest.mark.parametrize(
    ("shape", "num_looks", "constant"),
    # Jennison and Turnbull 2000, tables 2.1 (Pocock), 2.3 (O'Brien and Fleming), 2.9 (Wang and Tsiatis).
    [(0.5, 2, 2.178), (0.5, 5, 2.413), (0.0, 2, 1.977), (0.0, 5, 2.040), (0.25, 5, 2.136)],
)
def test_the_constants_are_those_of_the_tables(shape: float, num_looks: int, constant: float) -> None:
    equally_spaced = tuple(range(1, num_looks + 1))
    assert critical_constant(equally_spaced, 0.05, shape) == pytest.approx(constant, abs=0.0006)


def test_a_single_look_spends_its_share_at_once() -> None:
    assert nominal_levels((4,), 0.05) == pytest.approx((SPENT * 0.05,))


@pytest.mark.parametrize("max_pairs", range(2, 13))
@pytest.mark.parametrize("error", [0.05, 0.1])
def test_later_looks_ask_for_less_and_none_for_more_than_a_single_one_would(
    max_pairs: int, error: float
) -> None:
    levels = nominal_levels(looks(max_pairs), error)
    assert list(levels) == sorted(set(levels))
    assert levels[0] > 0 and levels[-1] <= error
    # Bonferroni would spend the same and get less for it.
    assert sum(levels) >= SPENT * error * (1 - 1e-9)


@pytest.mark.parametrize("max_pairs", [3, 4, 5, 7, 9, 12])
def test_successive_t_tests_err_no_more_than_promised(max_pairs: int) -> None:
    """An independent simulation: normal noise, plain vectorised t with the order fitted."""
    num = 100_000
    y = np.random.default_rng(max_pairs).standard_normal((num, max_pairs))
    order = np.where(np.arange(max_pairs) % 2, -1.0, 1.0)
    called = np.zeros(num, bool)
    for n, level in zip(looks(max_pairs), nominal_levels(looks(max_pairs), 0.05), strict=True):
        if n == 2:
            continue  # nothing is left to estimate the noise from
        design = np.column_stack([np.ones(n), order[:n]])
        coefficients, rss, _, _ = np.linalg.lstsq(design, y[:, :n].T, rcond=None)
        se = np.sqrt(rss / (n - 2) * np.linalg.inv(design.T @ design)[0, 0])
        called |= np.abs(coefficients[0]) / se > scipy_stats.t.isf(level / 2, n - 2)
    assert called.mean() < 0.05
    assert called.mean() > 0.03  # nor is the error left unspent
