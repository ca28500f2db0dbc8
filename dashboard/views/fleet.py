"""The Fleet page: what is wrong now, where the capacity went, and who lies where."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.facts import hardware_facts
from analyzer.findings import Finding, Role, Verdict
from analyzer.ledger import LEVEL_1, LEVEL_2, Ledger
from collector.history import CardKey
from collector.protocols import StoreReader
from collector.schema import ACTIVITY, NOBODY, UNKNOWN
from collector.window import Window
from collector.words import plural
from dashboard.cli.output import clean as printable
from dashboard.views import svg
from dashboard.views.findings import effect_size
from dashboard.views.names import CardNames, named
from dashboard.views.palette import tenant_colours
from dashboard.views.reading import Look, bucket
from dashboard.views.text import percent, seconds, stamp
from tuner.killswitch import Pause
from tuner.record import ChangeState, GroupRecord

Level = Literal["critical", "warning", "info"]
NO_SAMPLE = 255
NOW = timedelta(minutes=15)
_SILENT_INTERVALS = 3
_IDLE = ("TT301", "TT302")
_GRAVEST = ("TT604", "TT602", "TT601")
_MISSED_INTERVALS = 0.5  # of the intervals since NOW

TERM_TEXT = {
    "used": "somebody's work ran",
    "reserved": "held and kept on purpose, as headroom",
    "wasted": "held and not used, beyond the reserve",
    "free": "held by nobody, and some request fits",
    "stranded": "held by nobody, and no request of the mix fits",
    "unobserved": "no sample, or a quota that nobody tells",
    "useful": "at its undisturbed cost, work that was finished in time",
    "contention": "more spent because neighbours slowed it",
    "throttling": "more spent because the clock was lowered",
    "overhead": "work that came too late, or use without any result",
    "unrated": "work that has no unit to count",
    "unaccounted": "what the terms do not explain",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong now: how bad, in words, and the page that says more."""

    level: Level
    text: str
    page: str


def problems(
    look: Look,
    cards: pd.DataFrame,
    holdings: pd.DataFrame,
    *,
    queues: pd.DataFrame,
    findings: Sequence[Finding],
    changes: Sequence[GroupRecord],
    pause: Pause,
    now: datetime | None = None,
    names: CardNames = MappingProxyType({}),
    imported: Mapping[CardKey, pd.Timestamp] = MappingProxyType({}),
) -> list[Problem]:
    """Return what is wrong now, worst first.

    Args:
        look: the range.
        cards: of the last `NOW`, as `read_holders` returns them.
        holdings: the same.
        queues: newest row of each queue.
        findings: of the last analysis.
        changes: newest groups.
        pause: the kill switch.
        now: the present, where rows are expected to keep coming.
        names: of the cards.
        imported: until when the rows of cards go that were imported after the fact: these do not fall silent.
    """
    sick = _sick(findings, names)
    found = [*_stopped(look, now), *sick.values(), *_silent(look, _live(cards, imported), sick), *_missed(holdings)]
    found += _open_claims(findings)
    found += [*_queues(queues), *_changes(changes)]
    if not pause.allows_new:
        found.append(Problem("warning", f"The tuner is {pause}", "changes"))
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda p: order[p.level])


def _stopped(look: Look, now: datetime | None) -> list[Problem]:
    age = 0.0 if now is None else (now - look.newest).total_seconds()
    if age <= _SILENT_INTERVALS * look.interval_seconds:
        return []
    words = f"No row came for {seconds(age)}: everything here is older; trimtab doctor says why"
    return [Problem("critical", words, "fleet")]


def _live(cards: pd.DataFrame, imported: Mapping[CardKey, pd.Timestamp]) -> pd.DataFrame:
    """Return the cards that somebody still reports on, or did until they fell silent."""
    keys = zip(cards["cluster"], cards["node"], cards["gpu"], cards["last_seen"], strict=True)
    past = [(c, n, g) in imported and (pd.isna(last) or last <= imported[c, n, g]) for c, n, g, last in keys]
    return cards[~np.array(past, dtype=bool)]


def _silent(look: Look, cards: pd.DataFrame, told: Collection[str]) -> list[Problem]:
    late = look.newest - timedelta(seconds=_SILENT_INTERVALS * look.interval_seconds)
    gone = cards[cards["last_seen"].isna() | (cards["last_seen"] < late)]
    return [
        Problem("critical", f"{card_name(row)} sends nothing{_since(row['last_seen'])}", "slices")
        for row in gone.to_dict("records")
        if row["gpu"] not in told
    ]


def _since(last: Any) -> str:
    return "" if pd.isna(last) else f" since {stamp(last.to_pydatetime())}"


def _sick(findings: Sequence[Finding], names: CardNames) -> dict[str, Problem]:
    """Return card -> one problem, from the gravest of its findings."""
    by_card: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.code in _GRAVEST and finding.verdict is Verdict.HOLDS:
            by_card[finding.subject(Role.SUBJECT).gpu].append(finding)
    found = {}
    for gpu, own in by_card.items():
        worst = min(own, key=lambda f: (_GRAVEST.index(f.code), -f.confidence, f.id))
        more = f" (and {plural(len(own) - 1, 'more finding')} about it)" if len(own) > 1 else ""
        found[gpu] = Problem("critical", named(worst.claim, names) + more, "slices")
    return found


def _missed(holdings: pd.DataFrame) -> list[Problem]:
    late = holdings[holdings["kept"] < 1 - _MISSED_INTERVALS]
    names = sorted({f"{t}/{w}" for t, w in zip(late["tenant"], late["workload"], strict=True)})
    if not names:
        return []
    return [Problem("critical", f"{_some(names)} {_miss(names)} the objective now", "slices")]


def _miss(names: Sequence[str]) -> str:
    return "misses" if len(names) == 1 else "miss"


def _open_claims(findings: Sequence[Finding]) -> list[Problem]:
    pairs = [f for f in findings if f.code.startswith("TT10") and f.verdict is Verdict.HOLDS]
    found = []
    if pairs:
        worst = percent(max(effect_size(f) for f in pairs))
        found.append(
            Problem(
                "warning",
                f"{plural(len(pairs), 'pair')} of slices in conflict, the worst is {worst} slower",
                "contention",
            )
        )
    stranded = [f for f in findings if f.code.startswith("TT2") and f.verdict is Verdict.HOLDS]
    if stranded:
        found.append(Problem("warning", f"{plural(len(stranded), 'finding')} of stranded capacity", "fragmentation"))
    idle = [f for f in findings if f.code in _IDLE and f.verdict is Verdict.HOLDS]
    if idle:
        hours = math.fsum(effect_size(f) for f in idle)
        holders = plural(len(idle), "holder")
        found.append(Problem("warning", f"{holders} of what nobody uses: {hours:.3g} card-hours wasted", "waste"))
    return found


def _queues(queues: pd.DataFrame) -> list[Problem]:
    waiting = float(queues["pending_count"].sum(min_count=1))
    if not waiting > 0:
        return []
    oldest = seconds(float(queues["oldest_wait_seconds"].max()))
    return [
        Problem(
            "info", f"{plural(round(waiting), 'request')} for cards waiting, the oldest for {oldest}", "fragmentation"
        )
    ]


def _changes(changes: Sequence[GroupRecord]) -> list[Problem]:
    asked = sum(r.state is ChangeState.PLANNED and r.decision == "ask" for r in changes)
    blocked = sum(r.state is ChangeState.ROLLBACK_BLOCKED for r in changes)
    found = []
    if blocked:
        found.append(
            Problem("warning", f"{plural(blocked, 'change')} could not be undone: a person must look", "changes")
        )
    if asked:
        found.append(Problem("info", f"{plural(asked, 'recommendation')} waiting for an answer", "recommendations"))
    return found


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def card_name(row: Mapping[Any, Any]) -> str:
    """Return `node-a GPU 2`, or the UUID's first characters where the exporter's index is not known."""
    index = str(row["index"])
    return f"{row['node']} GPU {index}" if index else f"{row['node']} {str(row['gpu'])[:12]}"


def ledger_terms(ledger: Ledger) -> pd.DataFrame:
    """Return the fleet's ledger, a row a term: `level` (1, 2), `term`, `share`, `card_hours`, `text`.

    Shares of level 1 are of the capacity, those of level 2 of what was used. Card hours are hours of an average
    card of the fleet.
    """
    capacity, used = float(ledger.fleet["capacity"]), float(ledger.fleet["used"])
    sms_per_hour = capacity / _card_hours(ledger) if capacity > 0 else math.nan
    rows = []
    for level, names, whole in ((1, LEVEL_1, capacity), (2, LEVEL_2, used)):
        for name in (*names, "unaccounted"):
            value = float(ledger.fleet[f"unaccounted_{level}" if name == "unaccounted" else name])
            share = value / whole if whole > 0 else math.nan
            rows.append((level, name, share, value / sms_per_hour, TERM_TEXT[name]))
    return pd.DataFrame(rows, columns=["level", "term", "share", "card_hours", "text"])


def _card_hours(ledger: Ledger) -> float:
    """Return the hours that the cards of the ledger span, from the hours' part of the capacity."""
    hours = ledger.hours["capacity"]
    whole = float(hours.max())
    return float((hours / whole).sum()) * len(ledger.gpus) if whole > 0 else math.nan


def utilisation(store: StoreReader, look: Look, ledger: Ledger) -> pd.DataFrame:
    """Return the fleet over time: `time`, `busy` (a kernel ran), `active` (SMs with work), `useful` and `wasted`.

    The first two are means over the cards that sent a row, the others by the hour, of all capacity; NaN absent.
    """
    every = bucket(look.window, look.interval_seconds, 160)
    rows = store.read("gpu", look.window, fields=["busy_ratio", "sm_active_ratio"], every=every, by=["cluster"])
    table = rows.groupby("time")[["busy_ratio", "sm_active_ratio"]].mean()
    table = table.rename(columns={"busy_ratio": "busy", "sm_active_ratio": "active"})
    hours = ledger.hours
    useful = pd.Series(
        (hours["useful"] / hours["capacity"]).to_numpy(),
        index=pd.DatetimeIndex(pd.to_datetime(hours["hour"], utc=True)),
        dtype="float64",
    )
    wasted = pd.Series((hours["wasted"] / hours["capacity"]).to_numpy(), index=useful.index, dtype="float64")
    times = pd.DatetimeIndex(table.index).floor("h")
    return table.assign(useful=useful.reindex(times).to_numpy(), wasted=wasted.reindex(times).to_numpy()).reset_index()


@dataclass(frozen=True, slots=True)
class Heat:
    """Activity of each card over time: `values` (cards, buckets), percent 0..100, `NO_SAMPLE` where there is none."""

    labels: tuple[str, ...]
    start: datetime
    step: timedelta
    values: npt.NDArray[np.uint8]


def heat(store: StoreReader, look: Look) -> Heat:
    """Return the heat map of the range: SM activity, else engine activity, else busy."""
    step = bucket(look.window, look.interval_seconds, 240)
    window = look.window.aligned(step)
    rows = store.read("gpu", look.window, fields=ACTIVITY, every=step)
    value = rows[[*ACTIVITY]].bfill(axis=1).iloc[:, 0].to_numpy(np.float64)
    keys = rows[["cluster", "node", "gpu"]].drop_duplicates()
    ordinals = hardware_facts(store.facts(look.window), "gpu", "ordinal")
    keys["index"] = [ordinals.get((*key, ""), "") for key in keys.itertuples(index=False, name=None)]
    keys = keys.sort_values(["cluster", "node", "index", "gpu"], ignore_index=True)
    count = max(round(window.seconds / step.total_seconds()), 1)
    values = np.full((len(keys), count), NO_SAMPLE, dtype=np.uint8)
    places = {
        tuple(key): i for i, key in enumerate(keys[["cluster", "node", "gpu"]].itertuples(index=False, name=None))
    }
    row = np.array(
        [places[key] for key in rows[["cluster", "node", "gpu"]].itertuples(index=False, name=None)], dtype=int
    )
    column = ((rows["time"] - window.start).dt.total_seconds() / step.total_seconds()).astype(int).to_numpy()
    known = ~np.isnan(value)
    values[row[known], column[known]] = np.clip(np.round(value[known] * 100), 0, 100).astype(np.uint8)
    labels = tuple(printable(card_name(key)) for key in keys.to_dict("records"))
    return Heat(labels, window.start, step, values)


@dataclass(frozen=True, slots=True)
class NodeMap:
    """One node, drawn: its name, the SVG, and the same in words."""

    node: str
    drawing: str
    alt: str


def node_maps(look: Look, cards: pd.DataFrame, holdings: pd.DataFrame, ink: svg.Ink) -> list[NodeMap]:
    """Return a drawing a node: every card a bar, every slice as wide as its quota and filled as far as it is used."""
    late = look.newest - timedelta(seconds=_SILENT_INTERVALS * look.interval_seconds)
    colours = tenant_colours(t for t in holdings["tenant"] if t not in (NOBODY, UNKNOWN))
    current = current_holdings(holdings, late)
    by_card = dict(iter(current.groupby(["cluster", "node", "gpu"])))
    maps = []
    for (_, node), group in cards.groupby(["cluster", "node"], sort=True):
        rows, words = [], []
        for card in group.sort_values(["index", "gpu"]).to_dict("records"):
            held = by_card.get((card["cluster"], card["node"], card["gpu"]))
            silent = bool(pd.isna(card["last_seen"]) or card["last_seen"] < late)
            rows.append(_bar_of(card, held, colours, silent=silent))
            words.append(f"{rows[-1].title}: {rows[-1].note}")
        maps.append(NodeMap(str(node), svg.bars(rows, ink), f"{printable(str(node))}. {'; '.join(words)}"))
    return maps


def current_holdings(holdings: pd.DataFrame, late: datetime) -> pd.DataFrame:
    """Return the holdings that were seen at or after `late`, each slice in the hands of its last holder."""
    alive = holdings[holdings["last_seen"] >= late].sort_values("last_seen", kind="stable")
    return alive.drop_duplicates(["cluster", "node", "gpu", "slice"], keep="last").sort_index()


def _bar_of(card: Mapping[Any, Any], held: pd.DataFrame | None, colours: Mapping[str, str], *, silent: bool) -> svg.Bar:
    index = str(card["index"]) or str(card["gpu"])[:12]
    title = f"GPU {index}  {short_model(str(card['model']))}"
    if silent or held is None:
        note = "sends nothing" if silent else f"nobody holds it, {percent(card['activity'])} active"
        return svg.Bar(title, note, (), silent=silent)
    pieces = []
    for row in held.sort_values("slice").to_dict("records"):
        quota = float(row["quota"])
        width = quota if not math.isnan(quota) else 1.0 / len(held)
        taken = row["tenant"] != NOBODY
        fill = float(row["used"]) / width if width > 0 else math.nan
        label = str(row["workload"]) if taken else f"free {row['profile']}".strip()
        pieces.append(svg.Piece(label, width, fill, colours.get(str(row["tenant"]), "#6d7a88") if taken else ""))
    return svg.Bar(title, f"{percent(card['activity'])} active", tuple(pieces))


def short_model(model: str) -> str:
    """Return `A100-80GB` for `NVIDIA A100-SXM4-80GB`: enough to tell cards apart."""
    words = [w for w in model.replace("-SXM4", "").replace("-SXM5", "").split() if w.upper() not in ("NVIDIA", "HBM3")]
    return printable(" ".join(words))


def recent(look: Look) -> Window:
    """Return the last minutes of the range: what holds now."""
    return Window(max(look.window.end - NOW, look.window.start), look.window.end)
