"""The true ledger closes, and its terms are what the preset plants."""

from __future__ import annotations

import numpy as np
import pytest

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.accounts import LEVEL_1, LEVEL_2, true_ledger


def test_both_levels_close(morning: SimulatedCluster, spec: ClusterSpec) -> None:
    terms = true_ledger(morning.truth, {})
    capacity = np.array([c.hardware.sm_count for c in spec.cards]) * 60.0 * len(morning.truth.minutes)
    np.testing.assert_allclose(sum(terms[name] for name in LEVEL_1), capacity)
    np.testing.assert_allclose(sum(terms[name] for name in LEVEL_2), terms["used"], atol=1e-6 * capacity.max())
    assert terms["reserved"].sum() == 0.0
    assert all((values >= 0).all() for values in terms.values())
    assert terms["used"].sum() == pytest.approx(sum(m.used.sum() for m in morning.truth.minutes))


def test_a_reserve_is_taken_out_of_the_waste(morning: SimulatedCluster) -> None:
    bare = true_ledger(morning.truth, {})
    kept = true_ledger(morning.truth, {(morning.spec.name, "language", "chat"): 0.2})
    assert kept["reserved"].sum() > 0
    np.testing.assert_allclose(kept["reserved"] + kept["wasted"], bare["wasted"])


def test_cards_of_the_preset(morning: SimulatedCluster, spec: ClusterSpec) -> None:
    terms = true_ledger(morning.truth, {})
    kinds = np.array([c.sharing for c in spec.cards])
    assert terms["stranded"][kinds == "vgpu"].min() > 0  # what no request of the mix is small enough for
    assert terms["free"][15] > 0  # a whole card waits for jobs that hardly come
    planted = {
        spec.slices[i].card for i, s in enumerate(spec.slices) if (f"{s.name}#{s.ordinal}") in dict(spec.planted)
    }
    assert terms["contention"].argmax() in planted
