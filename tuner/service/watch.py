"""The watch: what the backend holds, what the store has seen and what the forecast says, as one view of the fleet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from analyzer.facts import says_simulated
from analyzer.findings import Finding
from analyzer.forecast import LoadForecaster
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration
from collector.protocols import Store
from collector.schema import NOBODY
from collector.window import Window
from tuner.edge import read_backend
from tuner.model import Backend, BackendState, Target
from tuner.planner import PlannerInput, SliceView
from tuner.planner.views import MEMORY_KNOB, SHARE_KNOB
from tuner.service.claims import Claims, claims_of
from tuner.service.demand import DemandHistory, ResponseCurves, UnitCosts
from tuner.service.held import age_of_inputs, beside_others, capacity_of, card_of, card_view, queue_views
from tuner.service.live import Holding, holdings_of, in_steps, read_live, with_quotas_carried
from tuner.service.promises import PROMISE_FACTS, is_protected, objective_share, promises_of
from tuner.settings import TunerSettings

_STEP = timedelta(minutes=5)
_HISTORY = timedelta(days=14)
_RECENT = timedelta(minutes=5)
_WARM_PIECE = timedelta(hours=6)  # rows that are in memory at once while the past is learned
# How long a decrease needs to reach the work, and how long an increase is expected to hold.
LEAD = timedelta(minutes=30)
HOLD = timedelta(hours=2)
_FORECAST_EVERY = timedelta(minutes=15)
_FIT_EVERY = timedelta(hours=12)
_FIRST_FIT = timedelta(hours=24)  # before a day was seen, the models' prior is the better guess
_HEALTH_WINDOW = timedelta(hours=24)
_HEALTH_EVERY = timedelta(minutes=5)
_HEALTH_LATE = timedelta(hours=1)  # events may be stored so long after they happened
_PROMISES_EVERY = timedelta(minutes=15)
_SICK_CODES = ("xid", "card_lost")
_SICK_SEVERITIES = ("error", "critical")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store saw of one slice over the last minutes; shares of the whole card, NaN absent."""

    used: float
    kept: float
    coverage: float
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Sight:
    """The fleet at one instant, for planner and guards."""

    planner: PlannerInput
    state: BackendState
    declarations: Mapping[Owner, ResolvedWorkload]
    coverage: Mapping[Target, float]
    peak_memory_bytes: Mapping[Target, float]
    capacity: Mapping[Target, Mapping[str, float]]
    health: Mapping[Target, tuple[str, ...]]
    activity: float  # mean use of all slices that were seen
    newest: datetime | None  # row of a slice or card; None: none within the last minutes


class Watch:
    """Keeps what must be remembered between cycles: demand, response curves, forecasts, memory peaks.

    Args:
        store: where rows come from.
        backend: what is steered.
        settings: quantile and margins.
        interval_seconds: grid of the rows.
        declarations: the `[[workload]]` tables.
    """

    def __init__(
        self,
        store: Store,
        backend: Backend,
        settings: TunerSettings,
        *,
        interval_seconds: float,
        declarations: Sequence[WorkloadDeclaration] = (),
    ) -> None:
        self._store = store
        self._backend = backend
        self._settings = settings
        self._interval_seconds = interval_seconds
        self._configured = tuple(declarations)
        self._history = DemandHistory(_STEP, _HISTORY)
        self._curves = ResponseCurves()
        self._costs = UnitCosts()
        self._forecaster = LoadForecaster(step=_STEP)
        self._fitted_at: datetime | None = None
        self._forecast_at: datetime | None = None
        self._needs: dict[str, tuple[float, float]] = {}
        self._peaks: dict[Target, float] = {}
        self._seen_until: datetime | None = None
        self._sick: dict[tuple[Target, str], datetime] = {}  # card and message -> when it was last told
        self._sick_at: datetime | None = None
        self._promises: dict[Owner, ResolvedWorkload] = {}
        self._undeclarable: set[Owner] = set()  # nobody, and unknown holders
        self._promises_at: datetime | None = None
        self._simulated = False

    def warm(self, now: datetime, length: timedelta) -> None:
        """Learn from what the store holds already, oldest first.

        The past is judged by the quotas that its own rows tell, each until a row tells another.
        """
        side_by_side = beside_others(read_backend(self._backend))
        start = max(now - length, now - _HISTORY)
        while start < now:
            end = min(start + _WARM_PIECE, now)
            rows, cards = read_live(self._store, Window(start, end))
            for step, own, whole in in_steps(with_quotas_carried(rows), cards, Window(start, end), _STEP):
                self._learn(holdings_of(own, whole, granted={}, side_by_side=side_by_side), step)
            start = end

    def look(self, now: datetime, findings: Sequence[Finding] = ()) -> Sight:
        """Return the fleet as of `now`.

        Raises:
            UnreachableError: the backend does not answer.
        """
        state = read_backend(self._backend)
        window = Window(now - _RECENT, now + timedelta(milliseconds=1))
        rows, cards = read_live(self._store, window)
        granted = {t: s.effective[SHARE_KNOB] for t, s in state.targets.items() if SHARE_KNOB in s.effective}
        holdings = holdings_of(rows, cards, granted=granted, side_by_side=beside_others(state))
        seen, promises = self._learn(holdings, window)
        self._refresh_forecast(now)
        views = _views(state, seen, promises, self, claims_of(findings, self._settings.reserve_quantile))
        grouped: dict[tuple[str, str, str], list[SliceView]] = defaultdict(list)
        for view in views:
            grouped[view.target.cluster, view.target.node, view.target.gpu].append(view)
        health = self._health(state, now)
        capacity = capacity_of(state)
        card_views = tuple(card_view(key, slices, state, capacity, health) for key, slices in sorted(grouped.items()))
        as_of = now - timedelta(seconds=age_of_inputs(views, self._settings.max_age_seconds))
        used = [s.used for s in seen.values() if not math.isnan(s.used)]
        ends = [frame["time"].max().to_pydatetime() for frame in (rows, cards) if len(frame)]
        return Sight(
            planner=PlannerInput(
                now=now,
                as_of=as_of,
                cards=card_views,
                queues=queue_views(state),
                knobs=tuple(self._backend.knobs()),
                simulated=self._simulated,
                interval_seconds=self._interval_seconds,
            ),
            state=state,
            declarations=promises,
            coverage={v.target: v.coverage if v.age_seconds <= self._settings.max_age_seconds else 0.0 for v in views},
            peak_memory_bytes=dict(self._peaks),
            capacity=capacity,
            health=health,
            activity=float(np.mean(used)) if used else math.nan,
            newest=max(ends, default=None),
        )

    def needs(self, series: str) -> tuple[float, float]:
        """Return the forecast need of a workload over lead and hold time, in shares of a card; NaN: no forecast."""
        return self._needs.get(series, (math.nan, math.nan))

    def utilisation_limit(self, series: str) -> float:
        """Return how far a workload may fill its quota."""
        return self._curves.limit(series)

    def watched_seconds(self, series: str) -> float:
        """Return for how long a workload has been watched."""
        return self._history.watched_seconds(series)

    def peak_memory(self, target: Target) -> float:
        """Return the most memory that a slice was seen to use, in bytes; NaN: never seen."""
        return self._peaks.get(target, math.nan)

    def forecasts(self) -> pd.DataFrame:
        """Return the latest needs as forecast rows (series, quantile, value), for the ledger's reserve."""
        rows = [(f"{s}#each", self._settings.reserve_quantile, lead) for s, (lead, _) in sorted(self._needs.items())]
        return pd.DataFrame(rows, columns=["series", "quantile", "value"])

    def _learn(
        self, holdings: Sequence[Holding], window: Window
    ) -> tuple[dict[Target, Seen], dict[Owner, ResolvedWorkload]]:
        """Remember what the slices did in a window; return what was seen of each, and what was promised."""
        promises = self._promises_of(holdings, window)
        seen: dict[Target, Seen] = {}
        totals: dict[str, list[float]] = defaultdict(list)
        last_ms = max((float(h.times_ms[-1]) for h in holdings), default=0.0)
        fresh_ms = 0.0 if self._seen_until is None else self._seen_until.timestamp() * 1000 - 0.5  # whole ms
        for holding in holdings:
            owner = (holding.target.cluster, holding.tenant, holding.workload)
            series = series_of(owner)
            used = self._used(series, holding, window.end)
            self._remember_peak(holding.target, holding.memory_bytes)
            seen[holding.target] = Seen(
                used=used,
                kept=holding.kept,
                coverage=holding.coverage(last_ms, self._interval_seconds),
                age_seconds=holding.age_seconds(window.end, self._interval_seconds),
            )
            if holding.tenant == NOBODY:
                continue
            if not math.isnan(used):
                totals[series].append(used)
            share = objective_share(promises.get(owner))
            if not math.isnan(share):
                new = holding.times_ms >= fresh_ms
                kept = np.where(np.isnan(holding.met[new]), np.nan, holding.met[new] >= share)
                with np.errstate(invalid="ignore", divide="ignore"):
                    self._curves.add(series, holding.used[new] / holding.quota[new], kept)
        self._history.add(window.end, {name: float(np.sum(parts)) / len(parts) for name, parts in totals.items()})
        self._seen_until = window.end
        return seen, promises

    def _used(self, series: str, holding: Holding, at: datetime) -> float:
        """Return what a slice uses: for a service its rate times its calm cost, once that is known."""
        used = holding.mean_used
        self._costs.add(series, at, used, holding.requests_per_second)
        calm = self._costs.used(series, holding.requests_per_second)
        return used if math.isnan(calm) else calm

    def _promises_of(self, holdings: Sequence[Holding], window: Window) -> dict[Owner, ResolvedWorkload]:
        """Return the promises of all workloads; read anew every few minutes, and when a workload is new."""
        holders = {(h.target.cluster, h.tenant, h.workload) for h in holdings}
        known = self._promises_at is not None and window.end - self._promises_at < _PROMISES_EVERY
        if not known or holders - self._promises.keys() - self._undeclarable:
            facts = self._store.facts(window, names=PROMISE_FACTS)
            self._promises = promises_of(facts, holders, self._configured)
            self._undeclarable = holders - self._promises.keys()
            self._promises_at = window.end
            # Of the whole store: it holds one kind of rows only.
            self._simulated = says_simulated(self._store.facts(names=["simulated"]))
        return self._promises

    def _remember_peak(self, target: Target, memory_bytes: float) -> None:
        if not math.isnan(memory_bytes):
            self._peaks[target] = max(self._peaks.get(target, 0.0), memory_bytes)

    def _refresh_forecast(self, now: datetime) -> None:
        if self._forecast_at is not None and now - self._forecast_at < _FORECAST_EVERY:
            return
        history = self._history.frame()
        if not len(history):
            return
        span = history["time"].max() - history["time"].min()
        due = span >= _FIRST_FIT if self._fitted_at is None else now - self._fitted_at >= _FIT_EVERY
        if due:
            self._forecaster.fit(history)
            self._fitted_at = now
        ahead = self._forecaster.forecast_block_max(history, now, [LEAD, HOLD], [self._settings.reserve_quantile])
        lead, hold = (
            dict(zip(rows["series"], rows["value"].astype(float), strict=True))
            for rows in (ahead[ahead["horizon_seconds"] == span.total_seconds()] for span in (LEAD, HOLD))
        )
        self._needs = {name: (lead[name], hold[name]) for name in lead}
        self._forecast_at = now

    def _health(self, state: BackendState, now: datetime) -> dict[Target, tuple[str, ...]]:
        """Return the evidence against each card that was seen; an unseen card is absent, and unknown is not healthy."""
        if self._sick_at is None or now - self._sick_at >= _HEALTH_EVERY:
            unread = _HEALTH_WINDOW if self._sick_at is None else now - self._sick_at + _HEALTH_LATE
            events = self._store.events(Window.last(now + timedelta(milliseconds=1), min(unread, _HEALTH_WINDOW)))
            bad = events[events["code"].isin(_SICK_CODES) & events["severity"].isin(_SICK_SEVERITIES)]
            for time, cluster, node, gpu, message in bad[["time", "cluster", "node", "gpu", "message"]].to_numpy():
                self._sick[Target("card", str(cluster), str(node), str(gpu)), str(message)] = time
            self._sick = {told: time for told, time in self._sick.items() if time > now - _HEALTH_WINDOW}
            self._sick_at = now
        against: dict[Target, set[str]] = defaultdict(set)
        for card, message in self._sick:
            against[card].add(message)
        cards_held = {card_of(t) for t in state.targets if t.kind in {"slice", "card"}}
        return {card: tuple(sorted(against.get(card, ()))) for card in cards_held}


def series_of(owner: Owner) -> str:
    """Return the name under which a workload's history is kept (mean over its slices)."""
    return "/".join(owner)


def _views(
    state: BackendState,
    seen: Mapping[Target, Seen],
    promises: Mapping[Owner, ResolvedWorkload],
    watch: Watch,
    claims: Claims,
) -> list[SliceView]:
    views = []
    for target, held in sorted(state.targets.items()):
        tenant, workload = held.facts.get("tenant", ""), held.facts.get("workload", "")
        if target.kind != "slice" or tenant in {"", NOBODY}:
            continue
        owner = (target.cluster, tenant, workload)
        promise = promises.get(owner)
        last = seen.get(target, Seen(math.nan, math.nan, 0.0, math.inf))
        series = series_of(owner)
        lead, hold = watch.needs(series)
        protected = is_protected(promises, owner)
        offline = promise is not None and promise.declared and promise.declaration.service_class == "offline"
        views.append(
            SliceView(
                target=target,
                kind=held.facts.get("kind", ""),
                tenant=tenant,
                workload=workload,
                service_class="offline" if offline else "online",
                protected=protected,
                floor=0.0 if promise is None else promise.declaration.floor,
                weight=1.0 if promise is None else promise.declaration.weight,
                quota=held.values.get(SHARE_KNOB, math.nan),
                effective=held.effective.get(SHARE_KNOB, math.nan),
                used=last.used,
                need_lead=lead,
                need_hold=hold,
                utilisation_limit=watch.utilisation_limit(series),
                kept=last.kept,
                objective_share=objective_share(promise),
                memory_quota_bytes=held.values.get(MEMORY_KNOB, math.nan),
                memory_peak_bytes=watch.peak_memory(target),
                memory_need_bytes=claims.memory_bytes.get(target, math.nan),
                coverage=last.coverage,
                age_seconds=last.age_seconds,
                history_seconds=watch.watched_seconds(series),
                suspect_in=tuple(claims.suspect_in.get(target, ())),
                victim_in=tuple(claims.victim_in.get(target, ())),
            )
        )
    return views
