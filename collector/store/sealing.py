"""Sealing unsealed rows into files, and merging the files of a day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.columns import bool_column, number_column, numbers_of
from collector.schema import MEASUREMENTS, Measurement
from collector.store import catalogue, query
from collector.store.hot import Blob, decode, gather
from collector.store.request import RAW, Pieces, Range, Segment
from collector.store.workshop import FileGroup, Workshop, with_tiers

DAY_MS = 86_400_000
# One blob a commit: so many make reads slow however few rows they hold.
SEAL_BLOBS = 720
# A day that still grows is merged at so many files; one that is over as soon as it has two.
MERGE_FILES = 12
_SEAL_AT_ONCE_ROWS = 1_000_000
# Late rows are written anew with the files they fall into, where these have at most so many times `seal_rows`.
_CHEAP_FILES = 2
_MOST_PLACES = 2**62  # that an integer tells apart


def seal_and_merge_due(shop: Workshop, owner: str) -> None:
    """Seal the measurements whose unsealed rows are many or old enough, and merge their files."""
    oldest_allowed = shop.now() - shop.settings.seal_seconds * 1000
    due = shop.db.execute(
        "SELECT measurement, min(written_at) FROM hot GROUP BY measurement"
        " HAVING sum(rows) >= ? OR count(*) >= ? OR min(written_at) <= ?",
        (shop.settings.seal_rows, SEAL_BLOBS, oldest_allowed),
    ).fetchall()
    for measurement, written_at in due:
        seal(shop, MEASUREMENTS[measurement], owner)
        by_age = written_at <= oldest_allowed
        past_files = 2 if by_age else MERGE_FILES
        merge(shop, MEASUREMENTS[measurement], owner, past_files=past_files, growing_files=MERGE_FILES)


def seal(shop: Workshop, spec: Measurement, owner: str) -> None:
    """Seal all rows of a measurement that are unsealed now; what a writer adds meanwhile waits for the next time."""
    (last,) = shop.db.execute("SELECT max(seq_min) FROM hot WHERE measurement = ?", (spec.name,)).fetchone()
    while last is not None:
        blobs, tables = _oldest_blobs(shop, spec, last)
        if not blobs:
            return
        (sealed_to,) = shop.db.execute(
            "SELECT max(t_max) FROM seg WHERE measurement = ? AND tier = ? AND state = 'live'", (spec.name, RAW)
        ).fetchone()
        hot = gather(spec, spec.field_names, tables, [b.seq_min for b in blobs])
        late, fresh = _parted(hot, sealed_to)
        ranges = [r for b in blobs for r in b.ranges]
        around = _small_files_around(shop, spec, late)
        written = _seal_rows(shop, spec, late, around, ranges) + _seal_rows(shop, spec, fresh, (), ranges)
        replaced = with_tiers(around, shop.segments(spec))
        shop.swap(written, owner, sealed=[b.seq_min for b in blobs], replaced=replaced)


def _small_files_around(shop: Workshop, spec: Measurement, late: pa.Table) -> list[Segment]:
    """Return files that late rows fall into and that are cheap to write anew with them, so that nothing clashes."""
    if not late.num_rows:
        return []
    times = numbers_of(late.column("t"))
    limit = catalogue.slowest_cursor(shop.db)
    most = _CHEAP_FILES * shop.settings.seal_rows
    return [
        s
        for s in shop.segments(spec, int(times.min()), int(times.max()) + 1)
        if s.tier == RAW
        and s.rows <= most
        and (limit is None or s.seq_max <= limit)
        and ((times >= s.t_min) & (times <= s.t_max)).any()
    ]


def _oldest_blobs(shop: Workshop, spec: Measurement, last: int) -> tuple[list[Blob], list[pa.Table]]:
    blobs: list[Blob] = []
    tables: list[pa.Table] = []
    total = 0
    with catalogue.snapshot(shop.db):
        for *described, payload in shop.db.execute(
            "SELECT seq_min, seq_max, t_min, t_max, rows, distinct_rows, payload FROM hot"
            " WHERE measurement = ? AND seq_min <= ? ORDER BY seq_min",
            (spec.name, last),
        ):
            blobs.append(Blob(*described))
            tables.append(decode(payload))
            total += blobs[-1].rows
            if total >= _SEAL_AT_ONCE_ROWS:
                break
    return blobs, tables


def _parted(rows: pa.Table, sealed_to: int | None) -> tuple[pa.Table, pa.Table]:
    """Part rows at what is sealed already, so that a few late ones do not make a whole day contested."""
    if sealed_to is None:
        return rows.slice(0, 0), rows
    late = numbers_of(rows.column("t")) <= sealed_to
    return rows.filter(bool_column(late)), rows.filter(bool_column(~late))


def _seal_rows(
    shop: Workshop, spec: Measurement, hot: pa.Table, files: Sequence[Segment], ranges: Sequence[Range]
) -> list[FileGroup]:
    """Write unsealed rows, merged with the rows of `files`, by the day."""
    clashes = Pieces(files, ranges, {}).clashes
    times = numbers_of(hot.column("t"))
    written = []
    # Only days that have rows: one row of long ago must not cost a query for each day since.
    for day in sorted({*np.unique(times // DAY_MS).tolist(), *(s.t_min // DAY_MS for s in files)}):
        span = (day * DAY_MS, (day + 1) * DAY_MS)
        parts = [s for s in files if s.t_min // DAY_MS == day]
        if parts or clashes:
            rows = query.merged_rows(spec, spec.field_names, parts, span=span, where={}, clashes=clashes)
            table = shop.engine.run(query.select_sorted(spec, spec.field_names, rows), hot=hot)
        else:
            inside = (times >= span[0]) & (times < span[1])
            table = _in_order(spec, hot if inside.all() else hot.filter(bool_column(inside)))
        written.append(shop.write(spec, table))
    return written


def _in_order(spec: Measurement, rows: pa.Table) -> pa.Table:
    """Sort rows by key then time, as `query.select_sorted` does, of which no two have the same key and time."""
    place, places = np.zeros(rows.num_rows, dtype=np.int64), 1
    for tag in spec.key:
        words = rows.column(tag).combine_chunks().dictionary_encode()
        rank = np.empty(len(words.dictionary), dtype=np.int64)
        rank[numbers_of(pc.array_sort_indices(words.dictionary))] = np.arange(len(rank))
        if places * len(rank) > _MOST_PLACES:
            known, place = np.unique(place, return_inverse=True)
            places = len(known)
        place, places = place * len(rank) + rank[numbers_of(words.indices)], places * len(rank)
    return rows.take(number_column(np.lexsort((numbers_of(rows.column("t")), place))))


def merge(
    shop: Workshop,
    spec: Measurement,
    owner: str,
    *,
    past_files: int = 2,
    growing_files: int = 2,
    days: range | None = None,
) -> None:
    """Merge the raw files of each day into one, with its tiers; not beyond the slowest shipper.

    Args:
        shop: the store's workshop.
        spec: the measurement.
        owner: token of the lock.
        past_files: merge a day that is over at so many files.
        growing_files: and the newest day at so many.
        days: only these, by their number since the epoch; None: all.
    """
    limit = catalogue.slowest_cursor(shop.db)
    segments = shop.segments(spec)
    raw = [s for s in segments if s.tier == RAW and (limit is None or s.seq_max <= limit)]
    newest = max((s.t_max for s in raw), default=0) // DAY_MS
    by_day: dict[int, list[Segment]] = defaultdict(list)
    for segment in raw:
        by_day[segment.t_min // DAY_MS].append(segment)
    for day, parts in sorted(by_day.items()):
        enough = len(parts) >= (growing_files if day == newest else past_files)
        if enough and (days is None or day in days):
            table = shop.engine.run(sorted_rows(spec, parts), hot=no_rows(spec))
            shop.swap([shop.write(spec, table)], owner, replaced=with_tiers(parts, segments))


def sorted_rows(spec: Measurement, parts: Sequence[Segment]) -> str:
    """Return the statement for the merged rows of raw files, sorted as they are sealed."""
    span = (min(s.t_min for s in parts), max(s.t_max for s in parts) + 1)
    clashes = Pieces(parts, (), {}).clashes
    rows = query.merged_rows(spec, spec.field_names, parts, span=span, where={}, clashes=clashes)
    return query.select_sorted(spec, spec.field_names, rows)


def no_rows(spec: Measurement) -> pa.Table:
    """Return the table `hot` for statements that read files alone."""
    return gather(spec, spec.field_names, (), ())
