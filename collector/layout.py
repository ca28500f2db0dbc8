"""From series to numbers: which cell of the cycle's matrix each series feeds, worked out once a series.

Words of this module. A *row* is a subject with values of its own (a card, a MIG instance, a container on a card, an
allocation, a server). An *entry* is what one source says of one field of one row; of several entries of a cell the
preferred one wins. A *channel* is a part of an entry: parts of an entry add up (engines, reasons, instances), series of
one channel are copies of the same value and count once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Tables:
    """Columns of all channels and entries, as arrays. `changed` counts how often they grew."""

    entry: Ints
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
    counter: Ints
    entry_cell: Ints
    entry_strict: NDArray[np.bool_]
    entry_rank: Ints  # the greatest is preferred


@dataclass(slots=True)
class _Channel:
    entry: int
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
    counter: int = -1


@dataclass(slots=True)
class _Entry:
    row: int
    field: int
    order: tuple[int, int, str]  # the least is preferred
    strict: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Who says a field: the exporter, over how long it is a mean (seconds; `0`: a point; `cycle`), and its rank."""

    order: tuple[int, int, str]
    exporter: str
    window: str


@dataclass(slots=True)
class Registry:
    """All rows, entries and channels that were ever seen, by number."""

    counters: CounterBook
    rows: dict[RowKey, int] = field(default_factory=lambda: {("",): NOWHERE})
    _row_keys: list[RowKey] = field(default_factory=lambda: [("",)])
    _entries: list[_Entry] = field(default_factory=list)
    _entry_numbers: dict[Hashable, int] = field(default_factory=dict)
    _channels: list[_Channel] = field(default_factory=list)
    _channel_numbers: dict[Hashable, int] = field(default_factory=dict)
    _channel_names: list[tuple[int, str]] = field(default_factory=list)
    _counted: list[tuple[int, str, int, str]] = field(default_factory=list)  # counter, target, row, field
    _tables: Tables | None = None
    origins: dict[int, dict[str, Origin]] = field(default_factory=dict)  # row -> field -> its preferred exporter
    origin_words: dict[int, dict[str, tuple[str, Provenance]]] = field(default_factory=dict)  # made of them, by row

    def __post_init__(self) -> None:
        """Put the dust bin at number 0."""
        self._entries.append(_Entry(NOWHERE, 0, (10**6, 0, ""), strict=False))
        self._channels.append(_Channel(entry=NOWHERE))
        self._channel_names.append((NOWHERE, ""))

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
        return self._channel_names[channel]

    def entry(self, target: str, row: int, field_name: str, order: tuple[int, int], *, strict: bool = False) -> int:
        """Return the number of what `target` says of a field of a row; lower `order` is preferred."""
        key = (target, row, field_name, order)
        number = self._entry_numbers.get(key)
        if number is None:
            number = self._entry_numbers[key] = len(self._entries)
            self._entries.append(_Entry(row, FIELD_INDEX[field_name], (*order, target), strict))
            self._tables = None
        return number

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
            entry: the entry that it is a part of.
            field_name: field of the schema; None where the value is read by hand.
            share: factor to the whole card, for ratios of a MIG instance.
            held: a counter whose growth is read by hand.
        """
        metric = mapped.row
        key = (target, row, metric.field, metric.quantity, part, entry, mapped.part)
        number = self._channel_numbers.get(key)
        if number is not None:
            return number
        spec = _SPECS[field_name] if field_name else _ANY
        kind = _channel_kind(mapped, spec, held=held)
        unit_scale = metric.scale
        is_level = kind == GAUGE and not metric.mask
        ratio = spec.unit == "ratio"
        clamp = 1.0 / unit_scale if (ratio and is_level) else math.inf
        # What is written in percent is 0 to 100; only what is written as a ratio overshoots a little.
        high = clamp if ratio and unit_scale != 1.0 else spec.high / unit_scale
        counter = -1
        if kind != GAUGE:
            words = (target, *self._row_keys[row], metric.field, metric.quantity, mapped.part, *part)
            counter = self.counters.number("|".join(words))
            self._counted.append((counter, target, row, metric.field))
        number = self._channel_numbers[key] = len(self._channels)
        self._channels.append(
            _Channel(
                entry=entry,
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
                counter=counter,
            )
        )
        self._channel_names.append((row, field_name or metric.field))
        if field_name and kind == GAUGE:
            self._note_origin(row, field_name, mapped, self._entries[entry].order)
        self._tables = None
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

    def _note_origin(self, row: int, field_name: str, mapped: MappedMetric, order: tuple[int, int, str]) -> None:
        self.origin_words.pop(row, None)
        known = self.origins.setdefault(row, {})
        if field_name not in known or order < known[field_name].order:
            window = mapped.exporter.window if mapped.row.window is None else mapped.row.window
            text = "unknown" if window is None else window if isinstance(window, str) else f"{window:g}"
            known[field_name] = Origin(order, mapped.exporter.exporter, text)

    @property
    def size(self) -> int:
        """How many channels there are."""
        return len(self._channels)

    def tables(self) -> Tables:
        """Return the columns of all channels and entries."""
        if self._tables is None:
            c, e = self._channels, self._entries
            self._tables = Tables(
                entry=np.array([x.entry for x in c], dtype=np.int64),
                kind=np.array([x.kind for x in c], dtype=np.int64),
                scale=np.array([x.scale for x in c]),
                low=np.array([x.low for x in c]),
                high=np.array([x.high for x in c]),
                clamp=np.array([x.clamp for x in c]),
                counts_cap=np.array([x.counts_cap for x in c]),
                mask=np.array([x.mask for x in c], dtype=np.int64),
                absent=np.array([x.absent for x in c]),
                quiet=np.array([x.quiet for x in c]),
                either=np.array([x.either for x in c]),
                alive=np.array([x.alive for x in c]),
                keep_over_gap=np.array([x.keep_over_gap for x in c]),
                counter=np.array([x.counter for x in c], dtype=np.int64),
                entry_cell=np.array([x.row * len(FIELDS) + x.field for x in e], dtype=np.int64),
                entry_strict=np.array([x.strict for x in e]),
                entry_rank=_ranks([x.order for x in e]),
            )
        return self._tables


def _ranks(orders: list[tuple[int, int, str]]) -> Ints:
    ranks = np.empty(len(orders), dtype=np.int64)
    ranks[sorted(range(len(orders)), key=orders.__getitem__, reverse=True)] = np.arange(len(orders))
    return ranks


def _channel_kind(mapped: MappedMetric, spec: Field, *, held: bool) -> int:
    if held:
        return HELD
    if mapped.row.nature != "counter":
        return GAUGE
    return INCREMENT if spec.kind is Kind.INCREMENT else RATE
