from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_data.cluster.latency import TIMEOUT_SECONDS, serve, sojourn


def one(service: float, load: float, lanes: float = 4.0, cv: float = 0.3, delay: float = 0.0):
    return sojourn(*(np.array([x]) for x in (service, load, lanes, cv, delay)))


def test_without_load_a_request_takes_its_service_time() -> None:
    assert one(0.05, 0.0).mean[0] == pytest.approx(0.05)


def test_one_lane_waits_as_kingman_says() -> None:
    times = one(0.1, 0.5, lanes=1.0, cv=0.3)
    wait = 0.1 * 0.5 / (1 - 0.5) * (1.3 + 0.09) / 2
    assert times.mean[0] == pytest.approx(0.1 + wait)


@given(st.floats(0.0, 0.95), st.floats(0.001, 0.05), st.floats(1.0, 20.0))
def test_more_load_is_never_faster(load: float, more: float, lanes: float) -> None:
    assert one(0.05, load + more, lanes).mean[0] >= one(0.05, load, lanes).mean[0] - 1e-12


@given(st.floats(0.001, 10.0), st.floats(0.0, 2.0), st.floats(0.05, 1.0), st.sampled_from([0.5, 0.99, 0.999]))
def test_percentiles_and_shares_are_of_one_distribution(service: float, load: float, cv: float, q: float) -> None:
    times = one(service, load, cv=cv)
    assert times.share_within(times.quantile(q))[0] == pytest.approx(q, abs=1e-6)


def test_the_tail_grows_faster_than_the_median() -> None:
    idle, busy = one(0.05, 0.2, 2.0), one(0.05, 0.95, 2.0)
    assert busy.quantile(0.999)[0] / idle.quantile(0.999)[0] > busy.quantile(0.5)[0] / idle.quantile(0.5)[0] > 1.0


@given(st.floats(0.0, 1e5), st.floats(0.0, 1e4), st.floats(0.0, 1e3))
def test_requests_are_conserved(arrived: float, backlog: float, capacity: float) -> None:
    served = serve(np.array([arrived]), np.array([backlog]), np.array([capacity]), 60.0)
    left = served.finished + served.timed_out + served.backlog
    assert left[0] == pytest.approx(arrived + backlog)
    assert served.finished[0] <= capacity * 60.0 + 1e-9


def test_a_saturated_server_times_requests_out() -> None:
    served = serve(np.array([12_000.0]), np.array([0.0]), np.array([100.0]), 60.0)
    assert served.finished[0] == 6000.0
    assert served.backlog[0] == 100.0 * TIMEOUT_SECONDS
    assert served.timed_out[0] == 4000.0
    assert served.delay_seconds[0] == pytest.approx(10.0)


def test_a_server_that_is_down_answers_nobody() -> None:
    served = serve(np.array([100.0]), np.array([0.0]), np.array([0.0]), 60.0)
    assert (served.finished[0], served.timed_out[0], served.delay_seconds[0]) == (0.0, 100.0, 0.0)
