"""Snapshots as files: our JSON and CSV, tables of published traces, and what `kubectl get nodes,pods -o json` prints.

docs/snapshot.md describes them. Bad entries are rejected with their place, and the rest is read.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analyzer.demand import Wish
from analyzer.snapshot import CutInstance, Snapshot, SnapshotNode, SnapshotPod, mix_of
from analyzer.snapshot_kube import read_kubernetes
from collector.errors import InputRejectedError

_MIB = 2.0**20
_MOST_CARDS = 1024  # of a node or a request: more is a mistake
_MOST = 1e18  # of bytes, cores, weights

# Columns of tables, ours first, then those of published traces with their factor.
_NAME = ("name", "node_name", "sn")
_NODE = ("node",)
_NODE_COLUMNS = frozenset(  # that no table of pods or requests has
    ("sn", "node_name", "gpus", "free_shares", "gpu_free_milli", "cpu_free_milli", "model", "gpu_model", "pool")
)
_CARDS = ("gpus", "gpu", "cards", "num_gpu")
_CPU = (("cpu_cores", 1.0), ("cpu_milli", 1e-3), ("cpu_total_milli", 1e-3))
_FREE_CPU = (("free_cpu_cores", 1.0), ("cpu_free_milli", 1e-3))
_SHARE = (("share", 1.0), ("gpu_milli", 1e-3))
_FREE_SHARES = (("free_shares", 1.0), ("gpu_free_milli", 1e-3))
_MODEL = ("model", "gpu_model")
_TYPE = ("type", "gpu_type", "gpu_spec")
_WEIGHT = ("weight", "n", "count")


def read_snapshot(text: str, name: str) -> Snapshot:
    """Read one file of a snapshot; what it is shows in its content.

    Args:
        text: the content.
        name: of the file, for messages.

    Raises:
        InputRejectedError: it is neither JSON nor a table of nodes, pods or requests, or nothing in it can be read.
    """
    start = text.lstrip("\ufeff \t\r\n")
    snapshot = _read_json(start, name) if start[:1] in {"{", "["} else _read_table(start, name)
    if not (snapshot.nodes or snapshot.pods or snapshot.requests):
        why = f" ({snapshot.rejected[0]})" if snapshot.rejected else ""
        raise InputRejectedError(f"expected nodes, pods or requests in {name}, found none that can be read{why}")
    return snapshot


def _read_json(text: str, name: str) -> Snapshot:
    try:
        document = json.loads(text)
        if "\\ud" in text.lower():  # halves of a character, which nothing can print
            document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise InputRejectedError(f"expected JSON in {name}, got something else: {error}") from None
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return read_kubernetes(document["items"], name)
    if isinstance(document, dict) and document.get("kind") in {"Node", "Pod"}:
        return read_kubernetes([document], name)
    if not isinstance(document, dict) or not {"nodes", "pods", "requests"} & document.keys():
        raise InputRejectedError(
            f"expected an object with nodes, pods or requests, or a Kubernetes list, in {name}; see docs/snapshot.md"
        )
    snapshot = Snapshot()
    for kind, read in (("nodes", _node), ("pods", _pod)):
        for number, entry in enumerate(_list(document, kind, name)):
            with_place = f"{name}: {kind}[{number}]"
            if isinstance(entry, dict):
                _try(snapshot, with_place, read, entry)
            else:
                snapshot.rejected.append(f"{with_place}: expected an object, got {type(entry).__name__}")
    _requests(snapshot, _list(document, "requests", name), f"{name}: requests")
    return snapshot


def _list(document: Mapping[str, Any], key: str, name: str) -> list[Any]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise InputRejectedError(f"expected a list as {key} in {name}, got {type(value).__name__}")
    return value


def _read_table(text: str, name: str) -> Snapshot:
    rows = csv.DictReader(io.StringIO(text, newline=None))
    try:
        columns = {column.strip() for column in rows.fieldnames or () if column}
    except csv.Error as error:
        raise InputRejectedError(f"expected a table in {name}, got {error}") from None
    snapshot = Snapshot()
    has_node = "node" in columns
    asks = columns & {"num_gpu", "cards", "share", "gpu_milli", "profile"}
    if columns & _NODE_COLUMNS:
        kind: Callable[[Snapshot, Mapping[str, Any]], None] = _node
    elif asks and columns & set(_WEIGHT) and not has_node:
        _requests(snapshot, list(_lines(rows, snapshot, name)), name)
        return snapshot
    elif asks and has_node:
        kind = _pod
    elif asks:
        _requests(snapshot, [{**row, "weight": 1} for row in _lines(rows, snapshot, name)], name)
        return snapshot
    else:
        told = ", ".join(sorted(columns))
        got = f"columns {_shortened(told) or 'none'}" if told.isprintable() else "something that is no text"
        raise InputRejectedError(
            f"expected a table of nodes, pods or requests in {name}, got {got}; see docs/snapshot.md"
        )
    for row in _lines(rows, snapshot, name):
        _try(snapshot, f"{name} line {rows.line_num}", kind, row)
    return snapshot


def _shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _lines(rows: csv.DictReader[str], snapshot: Snapshot, name: str) -> Iterator[dict[str, Any]]:
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            snapshot.rejected.append(f"{name} line {rows.line_num}: {error}")
            continue
        if row is None:
            return
        yield {key.strip(): value for key, value in row.items() if key}


def _try(
    snapshot: Snapshot, place: str, read: Callable[[Snapshot, Mapping[str, Any]], None], entry: Mapping[str, Any]
) -> None:
    try:
        read(snapshot, entry)
    except ValueError as error:
        snapshot.rejected.append(f"{place}: {error}")


def _requests(snapshot: Snapshot, entries: list[Any], place: str) -> None:
    weights = []
    for number, entry in enumerate(entries):
        try:
            if not isinstance(entry, Mapping):
                raise ValueError(f"expected an object, got {type(entry).__name__}")  # noqa: TRY301, TRY004
            weight = _number(entry, _WEIGHT, 1.0)
            if not weight >= 0:
                raise ValueError(f"expected a weight of 0 or more, got {weight:g}")  # noqa: TRY301
            weights.append((_wish(entry), weight))
        except ValueError as error:
            snapshot.rejected.append(f"{place}[{number}]: {error}")
    snapshot.requests += mix_of(weights)


def _node(snapshot: Snapshot, entry: Mapping[str, Any]) -> None:
    name = _text(entry, (*_NAME, *_NODE))
    if not name:
        raise ValueError("expected the name of a node")
    free = _numbers(entry, _FREE_SHARES)
    rooms = _numbers(entry, (("free_memory_bytes", 1.0),))
    cut = entry.get("instances_by_card") or ()
    if not isinstance(cut, list | tuple):
        raise ValueError("expected a list of cards as instances_by_card")  # noqa: TRY004
    cards = _count(entry, _CARDS, default=(len(free) if free is not None else 0) + len(cut))
    whole = cards - len(cut)
    for what, values in (("free_shares", free), ("free_memory_bytes", rooms)):
        if values is not None and len(values) != whole:
            raise ValueError(f"expected {whole} {what}, one a card that is not cut, got {len(values)}")
    if free is not None and not all(0 <= share <= 1 for share in free):
        raise ValueError(f"expected free shares between 0 and 1, got {free}")
    free_cpu = _scaled(entry, _FREE_CPU)
    cpu = _scaled(entry, _CPU)
    snapshot.nodes[name] = SnapshotNode(
        name=name,
        cards=cards,
        model=_text(entry, _MODEL),
        pool=_text(entry, ("pool",)) or "default",
        cpu_cores=math.inf if math.isnan(cpu) else cpu,
        memory_bytes=_number(entry, ("gpu_memory_bytes",), math.nan),
        free_shares=None if free is None else tuple(free),
        free_memory_bytes=None if rooms is None else tuple(rooms),
        free_cpu_cores=None if math.isnan(free_cpu) else free_cpu,
        cut=tuple(_instances(card) for card in cut),
    )


def _instances(card: object) -> tuple[CutInstance, ...]:
    if not isinstance(card, list):
        raise ValueError("expected a list of instances a card")  # noqa: TRY004
    found = []
    for entry in card:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("profile"), str):
            raise ValueError("expected instances with a profile")  # noqa: TRY004
        start = entry.get("start")
        if start is not None and (
            not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < _MOST_CARDS
        ):
            raise ValueError(f"expected a memory slice's number as start, got {str(start)[:40]!r}")
        found.append(CutInstance(entry["profile"].removeprefix("mig-"), start, str(entry.get("holder") or "")))
    return tuple(found)


def _pod(snapshot: Snapshot, entry: Mapping[str, Any]) -> None:
    where = entry.get("gpu_index", entry.get("card_numbers"))
    texts = where if isinstance(where, list) else str(where or "").replace(";", " ").replace(",", " ").split()
    try:
        cards = tuple(int(text) for text in texts)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected numbers of cards, got {where!r}") from None
    if not all(0 <= card < _MOST_CARDS for card in cards):
        raise ValueError(f"expected numbers of cards from 0 on, got {where!r}")
    name = _text(entry, ("name",)) or f"pod {len(snapshot.pods) + 1}"
    snapshot.pods.append(
        SnapshotPod(name, _wish(entry), _text(entry, _NODE), cards, _count(entry, ("pods",), default=1))
    )


def _wish(entry: Mapping[str, Any]) -> Wish:
    cards = _count(entry, ("cards", "num_gpu", "gpus"), default=1)
    profile = _text(entry, ("profile",)).removeprefix("mig-")
    share = _scaled(entry, _SHARE)
    share = 1.0 if math.isnan(share) or profile or cards > 1 else share
    if cards and not 0 < share <= 1:
        raise ValueError(f"expected a share above 0 and at most 1, got {share:g}")
    memory, cpu = _number(entry, ("memory_bytes",), 0.0), _scaled(entry, _CPU)
    if not memory >= 0 or cpu < 0:
        raise ValueError(f"expected memory and CPU of 0 or more, got {memory:g} and {cpu:g}")
    return Wish(
        cards=cards,
        share=share if cards else 0.0,
        memory_bytes=memory,
        cpu_cores=0.0 if math.isnan(cpu) else cpu,
        profile=profile,
        gpu_type=_text(entry, _TYPE),
    )


def _text(entry: Mapping[str, Any], names: tuple[str, ...]) -> str:
    said = ((name, entry.get(name)) for name in names)
    for name, value in said:
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value).strip()
        if value is not None and value != "":
            raise ValueError(f"expected a text as {name}, got {type(value).__name__}")
    return ""


def _number(entry: Mapping[str, Any], names: tuple[str, ...], default: float) -> float:
    for name in names:
        value = entry.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= _MOST:
            raise ValueError(f"expected a number as {name}, got {str(value)[:40]!r}")
        return number
    return default


def _scaled(entry: Mapping[str, Any], names: tuple[tuple[str, float], ...]) -> float:
    """Return the first of several columns in base units; NaN without any."""
    for name, factor in names:
        number = _number(entry, (name,), math.nan)
        if not math.isnan(number):
            # Thousandths are divided, not multiplied: 810 / 1000 is the number that people write as 0.81.
            return number if factor == 1.0 else number / round(1 / factor)
    return math.nan


def _count(entry: Mapping[str, Any], names: tuple[str, ...], *, default: int) -> int:
    number = _number(entry, names, float(default))
    if not 0 <= number <= _MOST_CARDS or number != int(number):
        raise ValueError(f"expected a whole number between 0 and {_MOST_CARDS} as {names[0]}, got {number:g}")
    return int(number)


def _numbers(entry: Mapping[str, Any], names: tuple[tuple[str, float], ...]) -> list[float] | None:
    for name, factor in names:
        value = entry.get(name)
        if value is None or value == "":
            continue
        parts = value if isinstance(value, list) else str(value).split(";")
        return [_scaled({name: part}, ((name, factor),)) for part in parts]
    return None
