"""Logs of nvidia-smi and dcgmi: columns at random, cells that are good, absent or garbage, lines that are torn."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from benchmarks.fuzzing import words
from collector.batch import Batch
from collector.importing.dcgmi import read_dcgmi
from collector.importing.log import LogPlace, NotImportableError, Tally
from collector.importing.monitors import read_dmon, read_pmon
from collector.importing.run import Reader
from collector.importing.tables import read_apps, read_query
from collector.importing.text import TextFile

MIB = 2.0**20
START = datetime(2026, 4, 1, tzinfo=UTC)
PLACE = LogPlace("c", "n1", UTC, START, 1.0, file_time=START)
ABSENT = ("[N/A]", "N/A", "[Not Supported]", "", "[Insufficient Permissions]")
ERRORS = ("ERR!", "[Unknown Error]", "[GPU requires reset]", "[GPU is lost]")

Cell = tuple[str, float]  # text, and the value that is right (NaN: none)


def read(reader: Reader, content: str | bytes, place: LogPlace = PLACE) -> tuple[list[Batch], Tally]:
    """Read a content as a file of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        tally = Tally()
        return list(reader(TextFile(path), place, tally)), tally


def rows(batches: list[Batch], measurement: str, key: str) -> dict[tuple[str, datetime], dict[str, object]]:
    """Return rows by the text of `key` and time."""
    found = {}
    for batch in batches:
        table = batch.rows.get(measurement)
        for row in table.to_pylist() if table is not None else ():
            found[row[key], row["time"]] = row
    return found


def compare(
    got: dict[tuple[str, datetime], dict[str, object]], wanted: dict[tuple[str, datetime], dict[str, float]]
) -> None:
    """See to it that rows are those that were generated, and their values."""
    words.require(got.keys() == wanted.keys(), "rows", sorted(got.keys() ^ wanted.keys())[:4])
    for key, values in wanted.items():
        for field, value in values.items():
            words.require(
                words.same(got[key].get(field, math.nan), value), f"{field} of {key}", got[key].get(field), value
            )


def percent(random: Random) -> Cell:
    """Return a share in percent."""
    value = random.randint(0, 100)
    return str(value), value * 0.01


def ratio(random: Random) -> Cell:
    """Return a share from 0 to 1."""
    text = f"{random.random():.3f}"
    return text, float(text)


def ranged(low: int, high: int, factor: float) -> Callable[[Random], Cell]:
    """Return a maker of whole numbers, or with two decimals."""

    def make(random: Random) -> Cell:
        text = str(random.randint(low, high))
        if random.random() < 0.3:
            text += f".{random.randint(0, 99):02}"
        return text, float(text) * factor

    return make


# Column -> (field, unit, maker, garbage that is out of its range).
_COLUMNS: dict[str, tuple[str, str, Callable[[Random], Cell], tuple[str, ...]]] = {
    "utilization.gpu": ("busy_ratio", "%", percent, ("4294967295", "101", "-1", "2619")),
    "utilization.memory": ("memory_busy_ratio", "%", percent, ("1000", "-5")),
    "memory.used": ("memory_used_bytes", "MiB", ranged(0, 80_000, MIB), ("-1", "1e30")),
    "memory.free": ("memory_free_bytes", "MiB", ranged(0, 80_000, MIB), ("-1",)),
    "power.draw": ("power_watts", "W", ranged(5, 900, 1.0), ("4000", "-3")),
    "temperature.gpu": ("temperature_celsius", "C", ranged(1, 120, 1.0), ("0", "255")),
    "clocks.sm": ("sm_clock_hertz", "MHz", ranged(1, 3000, 1e6), ("0", "99999")),
}
_TEXTS = ("garbage", "12 34", "1,5", "0x10", "1e", "--", "nan", "inf")


def _cell(random: Random, column: str, *, units: bool) -> Cell:
    _, unit, make, garbage = _COLUMNS[column]
    kind = random.random()
    if kind < 0.75:
        text, value = make(random)
        return (f"{text} {unit}" if units else text), value
    if kind < 0.85:
        return random.choice(ABSENT), math.nan
    if kind < 0.9:
        return random.choice(ERRORS), math.nan
    if kind < 0.95:
        return (f"{random.choice(garbage)} {unit}" if units else random.choice(garbage)), math.nan
    return random.choice([t for t in _TEXTS if "," not in t]), math.nan


def check_csv(random: Random) -> None:
    """Read a --query-gpu log: every good cell of a whole line has its value, nothing else has one."""
    if random.random() < 0.25:
        _check_apps(random)
        return
    units = random.random() < 0.6
    columns = random.sample(list(_COLUMNS), random.randint(1, len(_COLUMNS)))
    extra = random.sample(["pstate", "fan.speed", "name", "compute_mode"], random.randint(0, 3))
    named = random.choice(["uuid", "index"])
    order = ["timestamp", named, *columns, *extra]
    random.shuffle(order)
    heading = ", ".join(f"{c} [{_COLUMNS[c][1]}]" if c in _COLUMNS else c for c in order)
    cards = [f"GPU-{n}" if named == "uuid" else str(n) for n in range(random.randint(1, 4))]
    lines, wanted = [heading], {}
    headless = random.random() < 0.2
    if headless:
        lines = []
    for cycle in range(random.randint(1, 8)):
        for number, card in enumerate(cards):
            at = START + timedelta(seconds=cycle, milliseconds=number)
            cells = {c: _cell(random, c, units=units) for c in columns}
            texts = {c: text for c, (text, _) in cells.items()}
            texts |= {"timestamp": f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03}", named: card}
            texts |= {c: words.blunt(random) for c in extra}
            line = ", ".join(texts[c] for c in order)
            spoil = random.random()
            if spoil < 0.05:
                lines.append(line.rsplit(",", random.randint(1, len(order) - 1))[0])
                continue
            if spoil < 0.08:
                lines.append(line + ", more")
                continue
            if spoil < 0.1:
                lines.append(line.replace(texts["timestamp"], random.choice(["yesterday", "", "2026/13/45 99:00:00"])))
                continue
            if spoil < 0.2:
                other = [
                    "Wed Apr  1 10:00:01 UTC 2026",
                    "",
                    heading,
                    "\0\0\0\0",
                    "Unable to determine the device handle",
                ]
                lines.append(random.choice(other if not headless else other[:2]))
            lines.append(line)
            gpu = card if named == "uuid" else f"n1/{card}"
            wanted[gpu, at] = {_COLUMNS[c][0]: value for c, (_, value) in cells.items()}
    place = replace(PLACE, columns=tuple(order)) if headless else PLACE
    ending = random.choice(["\n", "\r\n"])
    try:
        batches, tally = read(read_query, ending.join(lines) + ending, place)
    except NotImportableError:
        words.require(not wanted, "a log with good lines was refused", lines)
        return
    compare(rows(batches, "gpu", "gpu"), wanted)
    words.require(tally.accepted == len(wanted), "accepted", tally.accepted, len(wanted))


def _check_apps(random: Random) -> None:
    lines, wanted = ["timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"], {}
    start = int(START.timestamp())
    for cycle in range(random.randint(1, 5)):
        at = START + timedelta(seconds=cycle)
        for pid in range(100, 100 + random.randint(1, 4)):
            memory, value = _cell(random, "memory.used", units=True)
            line = f"{at:%Y/%m/%d %H:%M:%S}.000, GPU-1, {pid}, /a b/p{pid}, {memory}"
            if random.random() < 0.1:
                lines.append(line.replace(f", {pid},", random.choice([", x,", ", [N/A],", ", -4,"])))
                continue
            lines.append(line)
            first = wanted.setdefault(("first", pid), {"at": start + cycle})["at"]  # type: ignore[arg-type]
            wanted[f"n1/{pid}.{first:.0f}", at] = {"memory_used_bytes": value}
    batches, _ = read(read_apps, "\n".join(lines))
    compare(rows(batches, "slice", "slice"), {k: v for k, v in wanted.items() if k[0] != "first"})  # type: ignore[misc]


_MONITORED: dict[str, tuple[str, Callable[[Random], Cell], tuple[str, ...]]] = {
    "pwr": ("power_watts", ranged(5, 900, 1.0), ("99999",)),
    "gtemp": ("temperature_celsius", ranged(1, 120, 1.0), ("0", "300")),
    "sm": ("busy_ratio", percent, ("4294", "101")),
    "mem": ("memory_busy_ratio", percent, ("4294", "-1")),
    "enc": ("encoder_ratio", percent, ("255",)),
    "pclk": ("sm_clock_hertz", ranged(1, 3000, 1e6), ("0",)),
    "fb": ("memory_used_bytes", ranged(0, 80_000, MIB), ("-1",)),
}


def _word(random: Random, column: str) -> Cell:
    _, make, garbage = _MONITORED[column]
    kind = random.random()
    if kind < 0.8:
        return make(random)
    if kind < 0.9:
        return "-", math.nan
    return random.choice((*garbage, "x", "1e", "0x1")), math.nan


def check_dmon(random: Random) -> None:
    """Read a dmon log, with or without stamps."""
    columns = random.sample(list(_MONITORED), random.randint(1, len(_MONITORED)))
    stamped = random.random() < 0.5
    head = "# " + ("Date Time " if stamped else "") + "gpu " + " ".join(columns)
    lines, wanted = (
        [head, "# " + ("YYYYMMDD HH:MM:SS " if stamped else "") + "Idx " + " ".join("x" for _ in columns)],
        {},
    )
    cards = random.randint(1, 4)
    for cycle in range(random.randint(1, 8)):
        at = START + timedelta(seconds=cycle)
        for card in range(cards):
            cells = {c: _word(random, c) for c in columns}
            line = f"   {card}   " + "   ".join(cells[c][0] for c in columns)
            if stamped:
                line = f" {at:%Y%m%d}  {at:%H:%M:%S} {line}"
                if random.random() < 0.1:
                    lines.append(random.choice([line + " 7", line.rsplit(" ", 1)[0].rstrip(), "", "x", head, " \0 "]))
            lines.append(line)
            wanted[f"n1/{card}", at] = {_MONITORED[c][0]: value for c, (_, value) in cells.items()}
    batches, _ = read(read_dmon, "\n".join(lines))
    compare(rows(batches, "gpu", "gpu"), wanted)


def check_pmon(random: Random) -> None:
    """Read a pmon log, with or without stamps; commands may hold blanks."""
    columns = random.sample(["sm", "enc", "fb"], random.randint(1, 3))
    stamped = random.random() < 0.5
    head = "# " + ("Date Time " if stamped else "") + "gpu pid type " + " ".join(columns) + " command"
    lines, wanted = [head], {}
    start = int(START.timestamp())
    pids = [random.sample(range(10**3, 10**6), random.randint(0, 3)) for _ in range(random.randint(1, 3))]
    names = {pid: random.choice(["train", "my app", "NVIDIA Overlay.", "日本語"]) for own in pids for pid in own}
    for cycle in range(random.randint(1, 6)):
        at = START + timedelta(seconds=cycle)
        for card, own in enumerate(pids):
            for pid in own or ["-"]:
                cells = {c: (("-", math.nan) if pid == "-" else _word(random, c)) for c in columns}
                line = f"  {card}  {pid}  {'-' if pid == '-' else random.choice(('C', 'G', 'C+G', 'M+C'))}  "
                line += "  ".join(cells[c][0] for c in columns) + "  " + names.get(pid, "-")  # type: ignore[call-overload]
                if stamped:
                    line = f" {at:%Y%m%d}  {at:%H:%M:%S} {line}"
                    if random.random() < 0.1:
                        lines.append(
                            random.choice([line.replace(str(pid), "0", 1), "", "x y", head]) if pid != "-" else ""
                        )
                lines.append(line)
                if pid != "-":
                    wanted[f"n1/{pid}.{start}", at] = {_MONITORED[c][0]: value for c, (_, value) in cells.items()}
    batches, _ = read(read_pmon, "\n".join(lines))
    compare(rows(batches, "slice", "slice"), wanted)


_DCGM: dict[str, tuple[str, Callable[[Random], Cell], tuple[str, ...]]] = {
    "GPUTL": ("busy_ratio", percent, ("4294967295", "101")),
    "POWER": ("power_watts", ranged(5, 900, 1.0), ("1e9",)),
    "FBUSD": ("memory_used_bytes", ranged(0, 80_000, MIB), ("9223372036854775794",)),
    "TMPTR": ("temperature_celsius", ranged(1, 120, 1.0), ("2147483632",)),
    "SMACT": (
        "sm_active_ratio",
        lambda r: (f"{(v := r.randint(0, 1000) / 1000):.3f}", v),
        ("140737488355328.0", "1.2"),
    ),
    "DRAMA": ("dram_active_ratio", lambda r: (f"{(v := r.randint(0, 1000) / 1000):.3f}", v), ("-0.5",)),
}


def check_dcgmi(random: Random) -> None:
    """Read a dcgmi log: headings come again, entities of other kinds between."""
    columns = random.sample(list(_DCGM), random.randint(1, len(_DCGM)))
    head = ["#Entity   " + "  ".join(columns), "ID        " + "  ".join("u" for _ in columns)]
    lines, wanted = list(head), {}
    cards = random.sample(range(16), random.randint(1, 4))
    for cycle in range(random.randint(1, 8)):
        at = START + timedelta(seconds=cycle)
        if random.random() < 0.2:
            lines += head
        for card in cards:
            cells = {}
            for column in columns:
                _, make, garbage = _DCGM[column]
                kind = random.random()
                bad = ("N/A", math.nan) if kind > 0.9 else (random.choice((*garbage, "x")), math.nan)
                cells[column] = make(random) if kind < 0.8 else bad
            lines.append(f"GPU {card}     " + "  ".join(cells[c][0] for c in columns))
            wanted[f"n1/{card}", at] = {_DCGM[c][0]: value for c, (_, value) in cells.items()}
            if random.random() < 0.1:
                lines.append(
                    random.choice(["Switch 0  1  2", "x", "", "GPU 1", "dmon was stopped due to receiving a signal."])
                )
    batches, _ = read(read_dcgmi, "\n".join(lines))
    compare(rows(batches, "gpu", "gpu"), wanted)


def never_fails(reader: Reader, content: bytes) -> None:
    """Read a spoilt content: whatever comes, it is no crash."""
    try:
        read(reader, content)
    except NotImportableError:
        return
