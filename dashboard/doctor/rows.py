"""What the stored rows say: is the picture alive, and where it is empty, is that idleness or a fault?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pandas as pd

from collector.history import CardKey
from collector.schema import ACTIVITY, NOBODY, UNKNOWN
from collector.words import plural
from dashboard.doctor.check import (
    DOWN_ADVICE,
    Check,
    down_checks,
    down_text,
    note,
    ok,
    problem,
    reject_text,
    some,
    span_text,
)

IDLE_BELOW = 0.01
LATE_INTERVALS = 3
LOOK_BACK = timedelta(days=1)
TOPIC = "data"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store holds around `now`.

    gpu, slice: newest row of each card and slice within LOOK_BACK, with the ACTIVITY columns.
    events, rejects: of the same span, as `Store.events` and `Store.rejects` return them.
    live: sources are configured, so that rows are expected to keep coming.
    imported: until when the rows of cards go that were imported after the fact: they are no sources that fall silent.
    """

    now: datetime
    interval_seconds: float
    gpu: pd.DataFrame
    slice: pd.DataFrame
    events: pd.DataFrame
    rejects: pd.DataFrame
    live: bool = True
    imported: Mapping[CardKey, pd.Timestamp] = field(default_factory=dict)

    def is_history(self, frame: pd.DataFrame) -> pd.Series:
        """Say of each row whether it was imported."""
        keys = zip(frame["cluster"], frame["node"], frame["gpu"], strict=True)
        until = [self.imported.get(key, pd.NaT) for key in keys]
        return frame["time"] <= pd.Series(until, index=frame.index, dtype="datetime64[ns, UTC]")

    @property
    def late(self) -> timedelta:
        """How old a newest row may be before its subject counts as silent."""
        return timedelta(seconds=LATE_INTERVALS * self.interval_seconds)


def examine_rows(seen: Seen) -> list[Check]:
    """Return what the rows say, the verdict (busy, idle or broken) last."""
    if seen.gpu.empty and seen.slice.empty:
        return _nothing(seen)
    live = pd.concat([frame["time"][~seen.is_history(frame)] for frame in (seen.gpu, seen.slice)])
    if live.empty and seen.live:
        text = "all rows of the last day were imported after the fact; no configured source has given any"
        return [*_targets_down(seen), *_untrusted(seen), problem(TOPIC, text, "is `trimtab collect` running?")]
    newest = live.max() if len(live) else pd.concat([seen.gpu["time"], seen.slice["time"]]).max()
    return [
        _freshness(seen, newest),
        *_targets_down(seen),
        *_untrusted(seen),
        *_silent_cards(seen, newest),
        *_blind_cards(seen, newest),
        *_rejected(seen),
        *_holders(seen, newest),
        _verdict(seen, newest),
    ]


def _nothing(seen: Seen) -> list[Check]:
    down = [*_targets_down(seen), *_untrusted(seen)]
    if down:
        return [*down, problem(TOPIC, "empty because broken: no rows for a day and targets are down", "see above")]
    if seen.live:
        text = f"empty because broken: no rows for {span_text(LOOK_BACK)}, though sources are configured"
        return [problem(TOPIC, text, "is `trimtab collect` running? try `trimtab collect --once`")]
    text = f"empty: no rows for {span_text(LOOK_BACK)} and no source is configured"
    return [problem(TOPIC, text, "run `trimtab import FILE...`, or add a [[source]] and run `trimtab collect`")]


def _freshness(seen: Seen, newest: pd.Timestamp) -> Check:
    age = seen.now - newest.to_pydatetime()
    if age < -seen.late:
        return problem(TOPIC, f"the newest row lies {span_text(-age)} in the future", "check the clocks of the hosts")
    if age <= seen.late:
        return ok(TOPIC, f"the newest row is {span_text(age)} old")
    if not seen.live:
        return note(TOPIC, f"the newest row is {span_text(age)} old; no source is configured, so none are expected")
    text = f"the newest row is {span_text(age)} old: the collector is blind"
    return problem(TOPIC, text, "is `trimtab collect` running? try `trimtab collect --once`")


def _targets_down(seen: Seen) -> list[Check]:
    about = seen.events[seen.events["code"].isin(["target_down", "target_up", "target_gone"])].sort_values(
        "time", kind="stable"
    )
    if about.empty:
        return []
    last = about.groupby(["cluster", "object"], sort=True).last()
    down = last[last["code"] == "target_down"]
    told = [
        (address, f"down since {time:%Y-%m-%d %H:%M} UTC: {down_text(address, message)}", DOWN_ADVICE)
        for (_, address), time, message in zip(down.index, down["time"], down["message"], strict=True)
    ]
    return down_checks(TOPIC, told)


CENSUS_ADVICE = {
    "card_unobserved": "add an exporter on that node, or see why its driver does not show the card",
    "card_doubled": "take one of the two targets out; several cards of one UUID are a fault of the host",
}
# Event that something is not as it should be -> the event that ends it (none: it is told once), and what to do.
_UNTRUSTED = {
    "blind": ("sees_again", "see the targets that are down; `trimtab collect --once` says why"),
    "source_frozen": ("source_moves", "restart the exporter: it answers, and its values stand still"),
    "source_denied": ("source_granted", "grant the account what deploy/kubernetes/rbac.yaml lists"),
    "card_unobserved": ("card_observed", CENSUS_ADVICE["card_unobserved"]),
    "card_doubled": ("", CENSUS_ADVICE["card_doubled"]),
    "card_renumbered": ("", "scripts and labels that go by the number mean another card now"),
    "card_replaced": ("", "its history goes on under the new UUID"),
}


def _untrusted(seen: Seen) -> list[Check]:
    """Name what the collector said of its sources and of the census of cards, as far as it still holds."""
    checks = []
    for code, (end, advice) in _UNTRUSTED.items():
        about = seen.events[seen.events["code"].isin([code, end])].sort_values("time", kind="stable")
        if about.empty:
            continue
        last = about.groupby(["cluster", "node", "gpu", "object"], sort=True).last()
        told = last.loc[last["code"] == code, "message"].tolist()
        if not told:
            continue
        make = problem if code in ("blind", "source_frozen") else note
        checks.append(make(TOPIC, some([str(message) for message in told], 2), advice))
    return checks


def _reporting(frame: pd.DataFrame, newest: pd.Timestamp, seen: Seen) -> pd.Series:
    return frame["time"] >= newest - seen.late


def _silent_cards(seen: Seen, newest: pd.Timestamp) -> list[Check]:
    silent = seen.gpu[~_reporting(seen.gpu, newest, seen) & ~seen.is_history(seen.gpu)]
    left = seen.events.loc[seen.events["code"].isin(["card_replaced", "card_forgotten"]), "gpu"]
    silent = silent[~silent["gpu"].isin(left)]
    if silent.empty:
        return []
    lost = set(seen.events.loc[seen.events["code"] == "card_lost", "gpu"])
    names = [
        f"{row.node}/{row.gpu} since {row.time:%m-%d %H:%M}{' (card lost)' if row.gpu in lost else ''}"
        for row in silent.itertuples()
    ]
    text = f"{len(silent)} of {plural(len(seen.gpu), 'card')} stopped reporting: {some(names)}"
    return [problem(TOPIC, text, "a lost card: see TT604 and the node's kernel log; else its exporter or its node")]


def activity_of(frame: pd.DataFrame) -> pd.Series:
    """Return each row's activity, from the best field that has a value; NaN where none has."""
    best = pd.Series(float("nan"), index=frame.index)
    for name in ACTIVITY:
        if name in frame:
            best = best.fillna(frame[name])
    return best


def _blind_cards(seen: Seen, newest: pd.Timestamp) -> list[Check]:
    now = seen.gpu[_reporting(seen.gpu, newest, seen)]
    blind = now[activity_of(now).isna()]
    if blind.empty:
        return []
    invalid = set(seen.rejects.loc[seen.rejects["field"].isin(ACTIVITY), "gpu"])
    names = [f"{row.node}/{row.gpu}" for row in blind.itertuples()]
    text = f"{len(blind)} of {plural(len(now), 'card')} reported without any activity: {some(names)}"
    if invalid & set(blind["gpu"]):
        return [problem(TOPIC, f"{text}; values came and were invalid", "see the rejects below")]
    advice = "let the exporter collect DCGM_FI_DEV_GPU_UTIL or the DCGM_FI_PROF_ fields"
    return [problem(TOPIC, text, advice)]


def _rejected(seen: Seen) -> list[Check]:
    if seen.rejects.empty:
        return []
    counts: Counter[str] = Counter()
    for row in seen.rejects.itertuples():
        counts[reject_text(str(row.field), str(row.reason))] += int(row.count)  # type: ignore[call-overload]  # rows are untyped
    names = [f"{count} x {name}" for name, count in counts.most_common()]
    text = f"{plural(counts.total(), 'sample')} of the last day invalid or corrected: {some(names)}"
    return [note(TOPIC, text, "invalid ones count as absent")]


def _holders(seen: Seen, newest: pd.Timestamp) -> list[Check]:
    slices = seen.slice[_reporting(seen.slice, newest, seen)]
    unknown = slices[slices["workload"] == UNKNOWN]
    if slices.empty or unknown.empty:
        return []
    names = [f"{row.node}/{row.slice}" for row in unknown.itertuples()]
    text = f"the holder of {len(unknown)} of {plural(len(slices), 'slice')} could not be told: {some(names)}"
    return [problem(TOPIC, text, "let the exporter add pod labels, and collect kube-state-metrics (kube_pod_labels)")]


def _verdict(seen: Seen, newest: pd.Timestamp) -> Check:
    """Tell "empty because idle" from "empty because broken"."""
    cards = seen.gpu[_reporting(seen.gpu, newest, seen)]
    slices = seen.slice[_reporting(seen.slice, newest, seen)]
    held = slices[~slices["workload"].isin([NOBODY, ""])]
    activity = activity_of(cards)
    busy = int((activity >= IDLE_BELOW).sum())
    idle = int((activity < IDLE_BELOW).sum())
    reports = plural(idle, "card reports", "cards report")
    held_text = plural(len(held), "slice is held", "slices are held")
    if cards.empty:
        return problem(TOPIC, "broken: slices report and no card does", "collect the card exporter (dcgm-exporter)")
    if busy:
        if slices.empty:
            text = f"partly broken: {busy} of {plural(len(cards), 'card')} at work, yet no slice is seen"
            return problem(TOPIC, text, "who holds them is not told: let dcgm-exporter add pod labels")
        return ok(
            TOPIC, f"alive: {plural(busy, 'card')} busy, {idle} idle, {int(activity.isna().sum())} unknown; {held_text}"
        )
    if not idle:
        return problem(TOPIC, "empty because broken: no card reports any activity", "see above")
    if held.empty:
        text = f"empty because idle: {reports}, all below {IDLE_BELOW:.0%}, and nobody holds a slice"
        return ok(TOPIC, text)
    return ok(
        TOPIC,
        f"idle: {reports}, all below {IDLE_BELOW:.0%}; {held_text} (`trimtab analyze idle`)",
    )
