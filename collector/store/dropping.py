"""What leaves the store: rows that are deleted, too old, or too many for the disk; facts that nobody needs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from collector.batch import Event, Severity, Subject
from collector.clock import from_ms, to_ms
from collector.schema import MEASUREMENTS, Measurement
from collector.settings import StoreSettings
from collector.store import catalogue, query, spans
from collector.store.request import HOUR, MINUTE, RAW, Segment
from collector.store.sealing import DAY_MS, merge, no_rows, seal, sorted_rows
from collector.store.workshop import FileGroup, Workshop, with_tiers
from collector.window import Window

_LOG = logging.getLogger(__name__)
# Ended facts of slices that tell who held what are kept as long as the hours that they explain; the others (pod,
# container, provenance of a field) explain rows of a minute or finer.
LASTING_FACTS = ("kind", "profile", "tenant", "workload", "service_class")
_TIERS = (RAW, MINUTE, HOUR)


def delete_rows(
    shop: Workshop, spec: Measurement, window: Window, where: Mapping[str, tuple[str, ...]], owner: str
) -> int:
    """Delete rows of `window` that match `where`, and the tier rows that start in it; return how many raw rows.

    Where raw rows are gone already, the rows of the finest tier that is left are counted.
    """
    seal(shop, spec, owner)
    start, end = to_ms(window.start), to_ms(window.end)
    merge(shop, spec, owner, days=range(start // DAY_MS, (end - 1) // DAY_MS + 1))
    segments = shop.segments(spec, start, end)
    live_raw = {s.id for s in segments if s.tier == RAW}
    written: list[FileGroup] = []
    replaced: list[int] = []
    count = 0
    for segment in segments:
        if segment.tier == RAW:
            rows = sorted_rows(spec, [segment])
            kept = shop.engine.run(query.select_kept(rows, spec, (start, end), where), hot=no_rows(spec))
            if kept.num_rows < segment.rows:
                count += segment.rows - kept.num_rows
                replaced += with_tiers([segment], segments)
                written += [shop.write(spec, kept)] if kept.num_rows else []
        elif segment.source not in live_raw:
            gone, group = _delete_from_tier(shop, spec, segment, (start, end), where)
            if gone:
                count += gone if segment.tier == MINUTE else 0
                replaced.append(segment.id)
                written += group
    shop.swap(written, owner, replaced=replaced)
    return count


def _delete_from_tier(
    shop: Workshop, spec: Measurement, segment: Segment, span: tuple[int, int], where: Mapping[str, tuple[str, ...]]
) -> tuple[int, list[FileGroup]]:
    columns = list(segment.exponents)
    everything = (segment.t_min, segment.t_max + 1)
    (rows,) = query.scan([segment], spec, columns, everything, {}, with_seq=False)
    kept = shop.engine.run(query.select_kept(rows, spec, span, where), hot=no_rows(spec))
    group = FileGroup(spec.name, (segment.seq_min, segment.seq_max))
    if kept.num_rows:
        shop.add_file(group, spec, segment.tier, kept)
    return segment.rows - kept.num_rows, [group] if kept.num_rows else []


# Retention ---------------------------------------------------------------------------------------------------------


def cutoffs(settings: StoreSettings, now: datetime) -> dict[str, int]:
    """Return tier -> instant (ms) before which its rows go."""
    days = {RAW: settings.raw_days, MINUTE: settings.minute_days, HOUR: settings.hour_days}
    return {tier: to_ms(now) - round(length * DAY_MS) for tier, length in days.items()}


def drop_old_rows(shop: Workshop, now: datetime, owner: str) -> int:
    """Drop files whose rows are all older than their tier's retention and shipped; return how many rows went."""
    oldest_kept = cutoffs(shop.settings, now)
    dropped = 0
    for spec in MEASUREMENTS.values():
        (oldest,) = shop.db.execute("SELECT min(t_min) FROM hot WHERE measurement = ?", (spec.name,)).fetchone()
        if oldest is not None and oldest < oldest_kept[RAW]:
            seal(shop, spec, owner)
        with catalogue.transaction(shop.db):
            limit = catalogue.slowest_cursor(shop.db)
            old = [
                s
                for s in shop.segments(spec)
                if s.t_max < oldest_kept[s.tier] and (limit is None or s.seq_max <= limit)
            ]
            _drop(shop, spec, old)
        dropped += sum(s.rows for s in old)
    return dropped


def _drop(shop: Workshop, spec: Measurement, gone: Sequence[Segment]) -> None:
    """Inside a transaction: take whole files out, and note up to where their tiers no longer answer."""
    shop.mark_deleted([s.id for s in gone])
    known = catalogue.floors(shop.db, spec.name)
    for tier in _TIERS:
        ends = [s.t_max + 1 for s in gone if s.tier == tier]
        if ends:
            floor = max([*ends, known.get(tier, ends[0])])
            shop.db.execute("REPLACE INTO meta VALUES (?, ?)", (f"floor/{spec.name}/{tier}", floor))


def drop_old_texts(shop: Workshop, now: datetime) -> None:
    """Drop facts that ended, events and rejects that are older than what they explain, and shipped."""
    oldest_kept = cutoffs(shop.settings, now)
    with catalogue.transaction(shop.db):
        limit = catalogue.slowest_cursor(shop.db)
        shipped = 2**62 if limit is None else limit
        shop.db.execute(
            "DELETE FROM fact WHERE seq <= ? AND (t_to < ? OR t_to = t_from"
            " OR t_to < ? AND kind = 'slice' AND name NOT IN (SELECT value FROM json_each(?)))",
            (shipped, oldest_kept[HOUR], oldest_kept[MINUTE], json.dumps(LASTING_FACTS)),
        )
        shop.db.execute("DELETE FROM event WHERE time < ? AND seq <= ?", (oldest_kept[HOUR], shipped))
        shop.db.execute("DELETE FROM reject WHERE time < ? AND seq <= ?", (oldest_kept[MINUTE], shipped))


# A full disk -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Victim:
    """Files that go together: a file that has a second name in another tier takes no room alone."""

    rank: int
    spec: Measurement
    segments: tuple[Segment, ...]
    size: int


def keep_within_limit(shop: Workshop) -> int:
    """Drop the oldest files until the store is within `disk_max_bytes`; return how many raw rows were lost unshipped.

    Raw rows go first where their tiers stay, then minutes, then hours, each oldest first; rows that a shipper has not
    sent yet go last of all: they are counted, told as an event, and logged.
    """
    allowed = shop.settings.disk_max_bytes
    if not allowed:
        return 0
    (pages, free, page_size) = (
        int(shop.db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    limit = catalogue.slowest_cursor(shop.db)
    victims = _victims(shop, limit)
    used = (pages - free) * page_size + sum(victim.size for victim in victims)
    lost = 0
    for victim in victims:
        if used <= allowed:
            break
        with catalogue.transaction(shop.db):
            _drop(shop, victim.spec, victim.segments)
            unshipped = _unshipped_rows(victim, limit)
            if unshipped:
                shop.db.execute(
                    "INSERT INTO meta VALUES ('lost_rows', ?1) ON CONFLICT DO UPDATE SET value = value + ?1",
                    (unshipped,),
                )
        used -= victim.size
        lost += unshipped
    if lost:
        _alarm(shop, lost, allowed)
    return lost


def _victims(shop: Workshop, limit: int | None) -> list[_Victim]:
    files: dict[tuple[int, int], list[tuple[Measurement, Segment, int]]] = {}
    for spec in MEASUREMENTS.values():
        for segment in shop.segments(spec):
            found = _stat(segment.path)
            if found is not None:
                files.setdefault(found[:2], []).append((spec, segment, found[2]))
    victims = []
    for names in files.values():
        spec, segment, size = names[0]
        tiers = [s.tier for _, s, _ in names]
        unshipped = limit is not None and segment.seq_max > limit and RAW in tiers
        rank = len(_TIERS) if unshipped else max(_TIERS.index(tier) for tier in tiers)
        victims.append(_Victim(rank, spec, tuple(s for _, s, _ in names), size))
    return sorted(victims, key=lambda v: (v.rank, v.segments[0].t_max, v.segments[0].id))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:  # lost: `verify` says so
        return None
    return found.st_dev, found.st_ino, found.st_size


def _unshipped_rows(victim: _Victim, limit: int | None) -> int:
    """Return how many of its raw rows may not have been shipped: all of a file that is shipped in part."""
    return sum(s.rows for s in victim.segments if s.tier == RAW and limit is not None and s.seq_max > limit)


def _alarm(shop: Workshop, lost: int, allowed: int) -> None:
    message = (
        f"the store is at its limit of {allowed} bytes: {lost} rows that were not shipped yet are dropped; "
        "look why shipping is behind, or raise store.disk_max_bytes"
    )
    _LOG.error("%s", message)
    with catalogue.transaction(shop.db):
        clusters = shop.db.execute("SELECT DISTINCT cluster FROM fact WHERE kind = 'cluster'").fetchall() or [("",)]
        at = from_ms(shop.now())
        spans.write_events(
            shop.db,
            [
                Event(Subject("cluster", cluster), "store_full", Severity.CRITICAL, message, at)
                for (cluster,) in clusters
            ],
        )
