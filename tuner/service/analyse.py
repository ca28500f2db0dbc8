"""The runner of the analyses: partitions out of a store, measured node by node, concluded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import Any, Required, TypedDict, TypeVar, Unpack

import numpy as np
import pandas as pd

from analyzer.census import SUBJECT_COLUMNS, Census, measure_subjects, take_census
from analyzer.facts import requests, says_simulated
from analyzer.findings import SCHEMA_VERSION, Finding
from analyzer.hollow import HollowBusy, conclude_hollow, measure_hollow
from analyzer.ledger import Ledger, conclude_ledger, measure_ledger
from analyzer.protocols import Conclusion, Context, Detector, Partition, Withheld
from analyzer.quota_moves import QuotaMove, quota_moves
from analyzer.reserve import forecast_reserve
from analyzer.settings import AnalyzeSettings
from analyzer.slice_account import ACCOUNT_KEY, FreeNow, accounts_document, free_now, measure_account, no_accounts
from analyzer.waiting import Waiting, measure_waiting
from collector.declarations import OWNER, Owner, ResolvedWorkload, WorkloadDeclaration
from collector.plugins import load_plugin, plugin_names
from collector.protocols import StoreReader
from collector.window import Window
from tuner.service.promises import resolve_promises
from tuner.service.spread import MapNodes, spread

DETECTOR_GROUP = "trimtab.detectors"
T = TypeVar("T")
_REMEMBERED = timedelta(days=7)  # as long as the collector keeps a lost card in capacity


@dataclass(frozen=True, slots=True)
class NodeMeasures:
    """What one node contributes: detector -> measures, rows of ledger and hollow-busy map, subjects, accounts."""

    measures: Mapping[str, pd.DataFrame]
    ledger: pd.DataFrame
    hollow: pd.DataFrame
    subjects: pd.DataFrame
    accounts: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Analysis:
    """The answer: findings (worst first), what was withheld, census, ledger, who waited for cards.

    accounts: a row a holding and a card (`analyzer.slice_account`); free: what is free now; moves: whose quota could go
    to whom; hollow: busy time in which the card did little.
    """

    window: Window
    findings: tuple[Finding, ...]
    withheld: tuple[Withheld, ...]
    census: Census
    ledger: Ledger
    waiting: tuple[Waiting, ...]
    accounts: pd.DataFrame
    free: tuple[FreeNow, ...]
    moves: tuple[QuotaMove, ...]
    hollow: tuple[HollowBusy, ...]
    declarations: Mapping[Owner, ResolvedWorkload]
    facts: pd.DataFrame  # of the window
    simulated: bool

    def to_json(self) -> dict[str, Any]:
        """Return the document that `trimtab analyze --json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "simulated": self.simulated,
            "findings": [f.to_json() for f in self.findings],
            "census": self.census.to_json(),
            "ledger": self.ledger.to_json(),
            "waiting": [w.to_json() for w in self.waiting],
            "free_now": [f.to_json() for f in self.free],
            "quota_moves": [m.to_json() for m in self.moves],
            "slices": accounts_document(self.accounts),
            "hollow_busy": [h.to_json() for h in self.hollow],
        }


def load_detectors(settings: AnalyzeSettings, families: Sequence[str] = ()) -> dict[str, Detector]:
    """Return the detectors by plug-in name that can give a code which is selected and not ignored.

    With them come those whose findings they rest on, whatever is selected; these findings are not told then.

    Args:
        settings: `select` and `ignore` (codes or prefixes).
        families: plug-in names to keep; empty: all.
    """
    detectors: dict[str, Detector] = {}
    for name in plugin_names(DETECTOR_GROUP):
        factory = load_plugin(DETECTOR_GROUP, name)
        detectors[name] = factory(settings) if signature(factory).parameters else factory()
    chosen = {
        name
        for name, detector in detectors.items()
        if (not families or name in families) and any(_wanted(c, settings) for c in detector.codes)
    }
    read = {code for name in chosen for code in _reads(detectors[name])}
    return {name: d for name, d in detectors.items() if name in chosen or read.intersection(d.codes)}


def _wanted(code: str, settings: AnalyzeSettings) -> bool:
    chosen = not settings.select or any(code.startswith(p) for p in settings.select)
    return chosen and not any(code.startswith(p) for p in settings.ignore)


def partitions(
    store: StoreReader, window: Window, interval_seconds: float, settings: AnalyzeSettings
) -> Iterator[Partition]:
    """Yield one partition a node, in order of (cluster, node): also of one that fell silent, or was never seen.

    A node that reported in the last days, or whose cards others count, keeps its capacity without any row.
    """
    facts, events, rejects = store.facts(window), store.events(window), store.rejects(window)
    about_facts, about_events, about_rejects = (_by_node(frame) for frame in (facts, events, rejects))
    options = settings.model_dump()
    for cluster, node in _nodes(store, window, facts):
        where = {"cluster": cluster, "node": node}
        yield Partition(
            cluster=cluster,
            node=node,
            window=window,
            interval_seconds=interval_seconds,
            gpu=store.read("gpu", window, where=where),
            slice=store.read("slice", window, where=where),
            node_rows=store.read("node", window, where=where),
            facts=about_facts(cluster, node),
            events=about_events(cluster, node),
            rejects=about_rejects(cluster, node),
            settings=options,
        )


def partition_of(
    store: StoreReader, node: tuple[str, str], window: Window, interval_seconds: float, settings: AnalyzeSettings
) -> Partition:
    """Return the partition of one node, (cluster, name)."""
    where = {"cluster": node[0], "node": node[1]}
    return Partition(
        cluster=node[0],
        node=node[1],
        window=window,
        interval_seconds=interval_seconds,
        gpu=store.read("gpu", window, where=where),
        slice=store.read("slice", window, where=where),
        node_rows=store.read("node", window, where=where),
        facts=_by_node(store.facts(window))(*node),
        events=_by_node(store.events(window))(*node),
        rejects=_by_node(store.rejects(window))(*node),
        settings=settings.model_dump(),
    )


def _nodes(store: StoreReader, window: Window, facts: pd.DataFrame) -> list[tuple[str, str]]:
    reporting = set(store.partitions(window))
    if not reporting:
        return []
    clusters = {cluster for cluster, _ in reporting}
    open_ = facts[facts["to"].isna() | (facts["to"] >= window.end)]
    carded = open_[(open_["kind"] == "gpu") | (open_["name"] == "unobserved_cards")]
    known = {(str(c), str(n)) for c, n in zip(carded["cluster"], carded["node"], strict=True) if c in clusters and n}
    lately = set(store.partitions(Window(min(window.end - _REMEMBERED, window.start), window.end)))
    counted = open_[(open_["kind"] == "node") & (open_["name"] == "unobserved_cards")]
    return sorted(reporting | (known & (lately | set(zip(counted["cluster"], counted["node"], strict=True)))))


def _by_node(frame: pd.DataFrame) -> Callable[[str, str], pd.DataFrame]:
    """Return what gives the rows about a node and those about no node at all (workloads, pods, the cluster)."""
    places = frame.groupby(["cluster", "node"]).indices

    def about(cluster: str, node: str) -> pd.DataFrame:
        mine = [places[key] for key in ((cluster, node), (cluster, "")) if key in places]
        return frame.iloc[np.sort(np.concatenate(mine)) if mine else []].reset_index(drop=True)

    return about


def measure_detectors(partition: Partition, detectors: Mapping[str, Detector]) -> dict[str, pd.DataFrame]:
    """Return detector name -> measures of one node; pure, so that nodes may be measured anywhere."""
    return {name: detector.measure(partition) for name, detector in detectors.items()}


def measure_node(partition: Partition, detectors: Mapping[str, Detector]) -> NodeMeasures:
    """Measure all of one node; pure, so that nodes may be measured anywhere."""
    return NodeMeasures(
        measures=measure_detectors(partition, detectors),
        ledger=measure_ledger(partition),
        hollow=measure_hollow(partition),
        subjects=measure_subjects(partition),
        accounts=measure_account(partition),
    )


class Options(TypedDict, total=False):
    """How a window is analysed.

    interval_seconds: grid of the rows.
    settings: thresholds, selection of codes.
    detectors: by name.
    declarations: the `[[workload]]` tables; absent: none.
    map_nodes: how nodes are spread; absent: as `[analyze] executor` says. The answer is the same.
    """

    interval_seconds: Required[float]
    settings: Required[AnalyzeSettings]
    detectors: Required[Mapping[str, Detector]]
    declarations: Sequence[WorkloadDeclaration]
    map_nodes: MapNodes | None


def find(
    store: StoreReader, window: Window, forecasts: pd.DataFrame, **options: Unpack[Options]
) -> tuple[Finding, ...]:
    """Return the findings of a window alone, worst first: what a tuner rests its plans on.

    Args:
        store: where rows come from.
        window: what is analysed.
        forecasts: what slices will need (`analyzer.reserve`): the tuner's own; a full analysis makes them.
        options: how.
    """
    context = replace(_context(store, window, options), forecasts=forecasts)
    detectors, settings = options["detectors"], options["settings"]
    nodes = _measured(store, window, options, partial(measure_detectors, detectors=detectors))
    return _findings(_conclude(nodes, detectors, context), settings)


def run_analysis(store: StoreReader, window: Window, **options: Unpack[Options]) -> Analysis:
    """Analyse a window: findings, ledger, accounts, who waits, what is free, and what could not be judged."""
    context = _context(store, window, options)
    detectors, settings = options["detectors"], options["settings"]
    interval_seconds = options["interval_seconds"]
    nodes = _measured(store, window, options, partial(measure_node, detectors=detectors))
    ledger_rows = [n.ledger for n in nodes]
    context = replace(context, forecasts=forecast_reserve(ledger_rows, context.declarations))
    conclusions = _conclude([n.measures for n in nodes], detectors, context)
    withheld = [w for c in conclusions for w in c.withheld if _wanted(w.code, settings)]
    findings = _findings(conclusions, settings)
    accounts = _joined([n.accounts for n in nodes], no_accounts())
    accounts = accounts.sort_values(list(ACCOUNT_KEY), kind="stable", ignore_index=True)
    subjects = _joined([n.subjects for n in nodes], pd.DataFrame(columns=list(SUBJECT_COLUMNS)))
    codes = sorted({code for d in detectors.values() for code in d.codes if _wanted(code, settings)})
    return Analysis(
        window=window,
        findings=findings,
        withheld=tuple(sorted(withheld, key=_by_place)),
        census=take_census(subjects, codes, withheld),
        ledger=conclude_ledger(ledger_rows, context),
        waiting=measure_waiting(requests(context.facts), context.queues, window, interval_seconds),
        accounts=accounts,
        free=free_now(accounts),
        moves=quota_moves(findings, context.queues, interval_seconds),
        hollow=conclude_hollow([n.hollow for n in nodes], context.declarations),
        declarations=context.declarations,
        facts=context.facts,
        simulated=context.simulated,
    )


def _measured(store: StoreReader, window: Window, options: Options, measure: Callable[[Partition], T]) -> list[T]:
    """Measure all nodes of a window, in their order, wherever they are to be measured."""
    settings = options["settings"]
    read = partitions(store, window, options["interval_seconds"], settings)
    given = options.get("map_nodes")
    if given is not None:
        return list(given(measure, read))
    with spread(settings.executor) as map_nodes:
        return list(map_nodes(measure, read))


def _context(store: StoreReader, window: Window, options: Options) -> Context:
    facts = store.facts(window)
    holders = store.read("slice", window, fields=["busy_ratio"], by=OWNER, aggregate="count")
    return Context(
        window=window,
        interval_seconds=options["interval_seconds"],
        facts=facts,
        queues=store.read("queue", window),
        forecasts=pd.DataFrame(),
        declarations=resolve_promises(facts, holders, options.get("declarations", ())),
        simulated=says_simulated(facts),
    )


def _conclude(
    nodes: Sequence[Mapping[str, pd.DataFrame]], detectors: Mapping[str, Detector], context: Context
) -> list[Conclusion]:
    conclusions: list[Conclusion] = []
    for name in sorted(detectors, key=lambda name: bool(_reads(detectors[name]))):  # stable: readers come last
        reads = _reads(detectors[name])
        known = sorted((f for c in conclusions for f in c.findings if f.code in reads), key=lambda f: f.id)
        frames = [measures[name] for measures in nodes if len(measures[name])]
        joined = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        conclusions.append(detectors[name].conclude(joined, replace(context, findings=tuple(known))))
    return conclusions


def _reads(detector: Detector) -> tuple[str, ...]:
    return getattr(detector, "reads", ())


def _findings(conclusions: Sequence[Conclusion], settings: AnalyzeSettings) -> tuple[Finding, ...]:
    found = [f for c in conclusions for f in c.findings if _wanted(f.code, settings)]
    return tuple(sorted(found, key=_worst_first))


def _joined(frames: Sequence[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else empty


def _by_place(withheld: Withheld) -> tuple[str, ...]:
    return withheld.code, withheld.cluster, withheld.node, withheld.gpu, withheld.slice, withheld.reason


_VERDICT_ORDER = {"holds": 0, "suspected": 1, "cannot tell": 2, "no effect found": 3}


def _worst_first(finding: Finding) -> tuple[int, str, float, str]:
    size = 0.0 if finding.effect is None else -abs(finding.effect.value)
    return _VERDICT_ORDER[finding.verdict.value], finding.code, size, finding.id
