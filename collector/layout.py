"""From series to numbers: which cell of the cycle's matrix each series feeds, worked out once a series.

Words of this module. A *row* is a subject with values of its own (a card, a MIG instance, a container on a card, an
allocation, a server). An *entry* is what one source says of one field of one row; of several entries of a cell the
preferred one wins. A *channel* is a part of an entry: parts of an entry add up (engines, reasons, instances), series of
one channel are copies of the same value and count once.

An entry's number is its row's and its saying's side by side: nothing need be looked up, or kept, for it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.batch import Provenance
from collector.counters import CounterBook
from collector.mappings import MappedMetric
from collector.schema import GPU, NODE, SLICE, Field, Kind

FIELDS: tuple[str, ...] = tuple(dict.fromkeys((*GPU.field_names, *SLICE.field_names, *NODE.field_names)))
FIELD_INDEX: dict[str, int] = {name: index for index, name in enumerate(FIELDS)}
_SPECS: dict[str, Field] = {f.name: f for f in (*NODE.fields, *SLICE.fields, *GPU.fields)}
_ANY = Field("any", "", Kind.GAUGE, "", -math.inf, math.inf)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GAUGE, INCREMENT, RATE, HELD = 0, 1, 2, 3  # HELD: a counter whose growth is read by hand (buckets, sums, counts)
NOWHERE = 0  # row, entry and channel 0 are a dust bin
RowKey = tuple[str, ...]
_FOR_LIFE = frozenset(("rows_remapped_corrected_count", "rows_remapped_uncorrected_count"))


_SAYING_BITS = 32
_PAGE_ROWS = 32


@dataclass(slots=True)
class Tables:
    """Columns of all channels, sayings and manners, as arrays.

    entry, manner, counter: by channel.
    field, strict, rank: by saying; the greatest rank is preferred.
    kind and all else: by manner, see `_Manner`.
    """

    entry: Ints
    manner: Ints
    counter: Ints
    field: Ints
    strict: NDArray[np.bool_]
    rank: Ints
    kind: Ints
    scale: Floats
    low: Floats
    high: Floats
    clamp: Floats
    counts_cap: NDArray[np.bool_]
    mask: Ints
    absent: Floats  # the value that says nothing; NaN: none
    either: NDArray[np.bool_]  # percent or ratio: the value must tell
    quiet: NDArray[np.bool_]  # NaN, or the absent value, is no sample at all
    alive: NDArray[np.bool_]
    keep_over_gap: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Manner:
    """How samples of one metric are read: the same for all devices of all targets."""

    mapped: MappedMetric | None = None  # kept, so that its identity stays its own
    name: str = ""
    kind: int = GAUGE
    scale: float = 1.0
    low: float = math.nan
    high: float = math.nan
    clamp: float = math.inf
    counts_cap: bool = False
    mask: int = 0
    absent: float = math.nan
    quiet: bool = False
    either: bool = False
    alive: bool = False
    keep_over_gap: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Who says a field: the exporter, over how long it is a mean (seconds; `0`: a point; `cycle`), and its rank."""

    order: tuple[int, int, str]
    exporter: str
    window: str


class Registry:
    """All rows, entries and channels that were ever seen, by number.

    There is a channel for nearly every series: they stand in columns of numbers, and what many have in common stands
    once.

    Attributes:
        counters: the last values of counters.
        rows: number of each row by its key.
        origins: row -> field -> its preferred exporter.
        origin_words: facts made of them, by row.
    """

    def __init__(self, counters: CounterBook) -> None:
        self.counters = counters
        self.rows: dict[RowKey, int] = {("",): NOWHERE}
        self._row_keys: list[RowKey] = [("",)]
        self._sayings: list[tuple[str, tuple[int, int, str], bool]] = []  # field, order with the target, strict
        self._saying_numbers: dict[Hashable, int] = {}
        self._manners: list[_Manner] = [_Manner()]
        self._manner_numbers: dict[Hashable, int] = {}
        self._part_numbers: dict[Hashable, int] = {}
        # Channels by part and row: pages of the rows that follow one another, since a number of each in a dictionary
        # takes ten times the room. There is no channel 0 among them.
        self._channel_pages: dict[int, array[int]] = {}
        self._channel_rows, self._channel_sayings = array("i"), array("i")
        self._channel_manners, self._channel_counters = array("i"), array("i")
        self._counted: list[tuple[int, str, int, str]] = []  # counter, target, row, field
        self._tables: Tables | None = None
        self.origins: dict[int, dict[str, Origin]] = {}
        self.origin_words: dict[int, dict[str, tuple[str, Provenance]]] = {}
        self._origins: dict[tuple[int, int], Origin] = {}
        # The dust bin.
        self._add_channel(NOWHERE, self._saying("", FIELDS[0], (10**6, 0), strict=False), 0, -1)

    def row(self, key: RowKey) -> int:
        """Return the number of a row, a new one for a new key."""
        number = self.rows.get(key)
        if number is None:
            number = self.rows[key] = len(self._row_keys)
            self._row_keys.append(key)
        return number

    def row_key(self, row: int) -> RowKey:
        """Return the key of a row."""
        return self._row_keys[row]

    def where(self, channel: int) -> tuple[int, str]:
        """Return the row and the field's name that a channel feeds."""
        return self._channel_rows[channel], self._manners[self._channel_manners[channel]].name

    def entry(self, target: str, row: int, field_name: str, order: tuple[int, int], *, strict: bool = False) -> int:
        """Return the number of what `target` says of a field of a row; lower `order` is preferred."""
        return row << _SAYING_BITS | self._saying(target, field_name, order, strict=strict)

    def channel(
        self,
        target: str,
        row: int,
        mapped: MappedMetric,
        part: tuple[str, ...] = (),
        *,
        entry: int = NOWHERE,
        field_name: str | None = None,
        share: float = 1.0,
        held: bool = False,
    ) -> int:
        """Return the number of a channel of `entry`.

        Args:
            target: the target's key.
            row: the row it speaks of.
            mapped: the metric's row in the mapping table.
            part: what tells the parts of the entry apart.
            entry: the entry that it is a part of, of the same row.
            field_name: field of the schema; None where the value is read by hand.
            share: factor to the whole card, for ratios of a MIG instance.
            held: a counter whose growth is read by hand.
        """
        metric, saying = mapped.row, entry & ((1 << _SAYING_BITS) - 1)
        name = (saying, target, metric.field, metric.quantity, part, mapped.part)
        key = self._part_numbers.setdefault(name, len(self._part_numbers)) << 32 | row
        page = self._channel_pages.get(key // _PAGE_ROWS)
        if page is None:
            page = self._channel_pages[key // _PAGE_ROWS] = array("i", bytes(4 * _PAGE_ROWS))
        number = page[row % _PAGE_ROWS]
        if number:
            return number
        read = self._manner(mapped, field_name, share, held=held)
        manner = self._manners[read]
        counter = -1
        if manner.kind != GAUGE:
            words = (target, *self._row_keys[row], metric.field, metric.quantity, mapped.part, *part)
            counter = self.counters.number("|".join(words))
            self._counted.append((counter, target, row, metric.field))
        number = page[row % _PAGE_ROWS] = len(self._channel_rows)
        self._add_channel(row, saying, read, counter)
        if field_name and manner.kind == GAUGE:
            self._note_origin(row, field_name, mapped, saying, read)
        return number

    def _saying(self, target: str, field_name: str, order: tuple[int, int], *, strict: bool) -> int:
        """Return the number of what a target says of a field, of whatever row."""
        key = (target, field_name, order, strict)
        number = self._saying_numbers.get(key)
        if number is None:
            number = self._saying_numbers[key] = len(self._sayings)
            self._sayings.append((field_name, (*order, target), strict))
        return number

    def _add_channel(self, row: int, saying: int, manner: int, counter: int) -> None:
        self._channel_rows.append(row)
        self._channel_sayings.append(saying)
        self._channel_manners.append(manner)
        self._channel_counters.append(counter)
        self._tables = None

    def _manner(self, mapped: MappedMetric, field_name: str | None, share: float, *, held: bool) -> int:
        """Return the number of the way in which a metric is read."""
        key = (id(mapped), field_name, share, held)
        number = self._manner_numbers.get(key)
        if number is None:
            number = self._manner_numbers[key] = len(self._manners)
            self._manners.append(_manner_of(mapped, field_name, share, held=held))
        return number

    def begin_anew(self, *, uuid: str = "", target: str = "") -> None:
        """Forget the counters of a card or of a target: another version may count otherwise, or from another start.

        Remapped rows are kept by the card itself, whatever driver counts them.
        """
        numbers = [
            counter
            for counter, said_by, row, name in self._counted
            if ((uuid and self._row_keys[row][1] == uuid) or (target and said_by == target)) and name not in _FOR_LIFE
        ]
        self.counters.forget(np.array(numbers, dtype=np.int64))

    def _note_origin(self, row: int, field_name: str, mapped: MappedMetric, saying: int, manner: int) -> None:
        self.origin_words.pop(row, None)
        origin = self._origins.get((saying, manner))
        if origin is None:
            window = mapped.exporter.window if mapped.row.window is None else mapped.row.window
            text = "unknown" if window is None else window if isinstance(window, str) else f"{window:g}"
            origin = self._origins[saying, manner] = Origin(self._sayings[saying][1], mapped.exporter.exporter, text)
        known = self.origins.setdefault(row, {})
        if field_name not in known or origin.order < known[field_name].order:
            known[field_name] = origin

    @property
    def size(self) -> int:
        """How many channels there are."""
        return len(self._channel_rows)

    def tables(self) -> Tables:
        """Return the columns of all channels, sayings and manners."""
        if self._tables is None:
            rows, saying = (np.array(column, np.int64) for column in (self._channel_rows, self._channel_sayings))
            manners = self._manners
            self._tables = Tables(
                entry=np.where(saying == NOWHERE, NOWHERE, rows << _SAYING_BITS | saying),
                manner=np.array(self._channel_manners, dtype=np.int64),
                counter=np.array(self._channel_counters, dtype=np.int64),
                field=np.array([FIELD_INDEX[name] for name, _, _ in self._sayings], dtype=np.int64),
                strict=np.array([strict for _, _, strict in self._sayings]),
                # Entries of one cell differ in their order, so that entries of equal rank are never compared.
                rank=_ranks([order for _, order, _ in self._sayings]),
                kind=np.array([m.kind for m in manners], dtype=np.int64),
                scale=np.array([m.scale for m in manners]),
                low=np.array([m.low for m in manners]),
                high=np.array([m.high for m in manners]),
                clamp=np.array([m.clamp for m in manners]),
                counts_cap=np.array([m.counts_cap for m in manners]),
                mask=np.array([m.mask for m in manners], dtype=np.int64),
                absent=np.array([m.absent for m in manners]),
                quiet=np.array([m.quiet for m in manners]),
                either=np.array([m.either for m in manners]),
                alive=np.array([m.alive for m in manners]),
                keep_over_gap=np.array([m.keep_over_gap for m in manners]),
            )
        return self._tables

    def kinds(self, channels: Sequence[int]) -> Ints:
        """Return the kinds of some channels."""
        return np.array([self._manners[self._channel_manners[one]].kind for one in channels], dtype=np.int64)


def parts_of(entries: Ints) -> tuple[Ints, Ints]:
    """Return rows and sayings of entries."""
    return entries >> _SAYING_BITS, entries & ((1 << _SAYING_BITS) - 1)


def _ranks(orders: list[tuple[int, int, str]]) -> Ints:
    ranks = np.empty(len(orders), dtype=np.int64)
    ranks[sorted(range(len(orders)), key=orders.__getitem__, reverse=True)] = np.arange(len(orders))
    return ranks


def _manner_of(mapped: MappedMetric, field_name: str | None, share: float, *, held: bool) -> _Manner:
    metric = mapped.row
    spec = _SPECS[field_name] if field_name else _ANY
    kind = _channel_kind(mapped, spec, held=held)
    unit_scale = metric.scale
    is_level = kind == GAUGE and not metric.mask
    ratio = spec.unit == "ratio"
    clamp = 1.0 / unit_scale if (ratio and is_level) else math.inf
    # What is written in percent is 0 to 100; only what is written as a ratio overshoots a little.
    high = clamp if ratio and unit_scale != 1.0 else spec.high / unit_scale
    return _Manner(
        mapped=mapped,
        name=field_name or metric.field,
        kind=kind,
        scale=(1.0 if metric.mask else unit_scale) * share,
        low=(spec.low / unit_scale) if is_level else (0.0 if kind != GAUGE else -math.inf),
        high=(high if not metric.cap else 1e9) if is_level else math.inf,
        clamp=clamp,
        counts_cap=metric.cap,
        mask=metric.mask,
        absent=math.nan if metric.absent is None else metric.absent,
        either=metric.either,
        quiet=mapped.exporter.nan_is_absent or metric.absent is not None,
        alive=metric.field in ("temperature_celsius", "sm_clock_hertz"),
        keep_over_gap=spec.kind is Kind.INCREMENT and spec.unit == "count",
    )


def _channel_kind(mapped: MappedMetric, spec: Field, *, held: bool) -> int:
    if held:
        return HELD
    if mapped.row.nature != "counter":
        return GAUGE
    return INCREMENT if spec.kind is Kind.INCREMENT else RATE
