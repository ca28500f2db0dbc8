"""Writing to InfluxDB: CPU of our line protocol against influxdb-client's writers, and an outage that loses nothing.

The writers send the same 6 tags and 25 fields a point to a server that only counts, in a process of its own; what they
sent is read back as line protocol and must be the same points. The outage runs against a real InfluxDB (the newest that
`make servers` has built), killed with SIGKILL and restarted ten times while 200,000 rows are on their way.
"""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import requests
from influxdb_client import InfluxDBClient, Point, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS
from pydantic import SecretStr

from benchmarks.figures import Figure, figure
from collector.batch import Batch, make_rows
from collector.influx.answers import read_answer
from collector.influx.client import InfluxClient
from collector.influx.lines import LineEncoder
from collector.influx.places import prepare
from collector.influx.progress import CURSOR, progress_of
from collector.influx.store import InfluxStore
from collector.schema import SLICE
from collector.settings import InfluxSettings, StoreSettings
from tests import servers
from tests.collector.influx_double import parse_line, split_lines

POINTS = 5_000  # of one request
ROUNDS = 7
FIELDS = SLICE.field_names[:25]
TAGS = SLICE.tags
OUTAGES = 10
OUTAGE_ROWS = 200_000


def run() -> list[Figure]:
    """Run all."""
    return [*encoding(), *outage()]


# Encoding and sending ----------------------------------------------------------------------------------------------


def points() -> pa.Table:
    """Rows with the digits that exporters give: shares of six decimals, whole numbers, some of either at rest."""
    rng = np.random.default_rng(4)
    fields: dict[str, np.ndarray] = {}
    for number, name in enumerate(FIELDS):
        kind = number % 3
        if kind == 0:
            values = np.round(rng.random(POINTS), 6)
        elif kind == 1:
            values = rng.integers(0, 80_000, POINTS).astype(np.float64)
        else:
            values = np.round(rng.random(POINTS) * 700, 3)
        fields[name] = np.where(rng.random(POINTS) < 0.3, 0.0, values)
    tags = {
        "cluster": ["east"] * POINTS,
        "node": [f"gpu-node-{i // 32:03d}" for i in range(POINTS)],
        "gpu": [f"GPU-{i // 4:08x}-5d31-4f0c-9d3b-1c2b7a9e0f11" for i in range(POINTS)],
        "slice": [f"gi{i % 4}" for i in range(POINTS)],
        "tenant": [f"team-{i % 20}" for i in range(POINTS)],
        "workload": [f"trainer-{i % 400}" for i in range(POINTS)],
    }
    return make_rows("slice", np.full(POINTS, 1_767_571_200_000), tags, fields)


class Sink(BaseHTTPRequestHandler):
    """Takes every body, keeps the last."""

    protocol_version = "HTTP/1.1"
    last = b""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Keep the body."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Sink.last = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Give the last body back."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(Sink.last)))
        self.end_headers()
        self.wfile.write(Sink.last)


def _serve(pipe: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    pipe.send(server.server_address[1])
    server.serve_forever()


def encoding() -> list[Figure]:
    """Measure the writers, turn by turn."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    sink = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    sink.start()
    try:
        return _encoding(f"http://127.0.0.1:{here.recv()}")
    finally:
        sink.terminate()
        sink.join()


def _encoding(url: str) -> list[Figure]:
    rows = points()
    frame = rows.to_pandas().set_index("time")
    found = []
    for compressed, least_frame, least_points in ((False, 5.0, 9.0), (True, 4.3, 6.6)):
        writers = _writers(url, rows, frame, compressed=compressed)
        seconds = dict.fromkeys(writers, np.inf)
        sent = {}
        for _ in range(ROUNDS):
            for name, write in writers.items():
                start = time.process_time()
                write()
                seconds[name] = min(seconds[name], time.process_time() - start)
                if name not in sent:
                    sent[name] = _read_back(url)
        same = sent["ours"] == sent["DataFrame"] == sent["Points"]
        how = "gzip 1 here, its own there" if compressed else "no gzip"
        rate = {name: POINTS / used for name, used in seconds.items()}
        for peer, least in (("DataFrame", least_frame), ("Points", least_points)):
            ratio = rate["ours"] / rate[peer]
            name = f"points per CPU second, {how}"
            found.append(
                Figure(name, rate["ours"], rate[peer], f"influxdb-client {peer}", ratio, "points/CPU-s",
                       f"ratio >= {least:g}, equal points", same and ratio >= least)
            )  # fmt: skip
    return found


def _writers(url: str, rows: pa.Table, frame: pd.DataFrame, *, compressed: bool) -> dict[str, Callable[[], None]]:
    ours = InfluxClient(InfluxSettings(url=url, org="o", token=SecretStr("t"), gzip="on" if compressed else "off"))
    encoder = LineEncoder("slice", TAGS)
    theirs = InfluxDBClient(url, "t", org="o", enable_gzip=compressed).write_api(write_options=SYNCHRONOUS)

    def write_ours() -> None:
        fields = {name: rows.column(name).to_numpy() for name in FIELDS}
        ours.write(encoder.encode(rows, fields), "b")

    def write_frame() -> None:
        theirs.write("b", "o", frame, data_frame_measurement_name="slice", data_frame_tag_columns=list(TAGS),
                     write_precision=WritePrecision.MS)  # fmt: skip

    tags = {tag: rows.column(tag).to_pylist() for tag in TAGS}
    values = {name: rows.column(name).to_pylist() for name in FIELDS}
    times = rows.column("time").cast(pa.int64()).to_pylist()

    def write_points() -> None:
        made = []
        for row in range(POINTS):
            point = Point("slice").time(times[row], WritePrecision.MS)
            for tag, texts in tags.items():
                point.tag(tag, texts[row])
            for name, numbers in values.items():
                point.field(name, numbers[row])
            made.append(point)
        theirs.write("b", "o", made, write_precision=WritePrecision.MS)

    return {"ours": write_ours, "DataFrame": write_frame, "Points": write_points}


def _read_back(url: str) -> set[tuple[object, ...]]:
    lines = split_lines(requests.get(url, timeout=60).text)
    return {
        (measurement, tuple(sorted(tags)), tuple(sorted(fields.items())), stamp)
        for measurement, tags, fields, stamp in map(parse_line, lines)
    }


# Outage ------------------------------------------------------------------------------------------------------------


def outage(rows: int = OUTAGE_ROWS, outages: int = OUTAGES) -> list[Figure]:
    """Kill InfluxDB again and again while rows are written and shipped; count what is there in the end."""
    start_server = servers.influxdb2
    try:
        servers.server_binary(servers.INFLUXDB_2)
    except servers.ServerMissing:
        start_server = servers.influxdb1  # its binary must be there
    with tempfile.TemporaryDirectory() as folder:
        count, distinct, kills = outage_of(Path(folder), start_server, rows, outages)
    name = f"rows after {kills} kills of {start_server.__name__}"
    return [
        figure(name, count, "rows", at_least=rows, at_most=rows),
        figure(f"{name}, distinct values", distinct, "rows", at_least=rows, at_most=rows),
    ]


def outage_of(
    folder: Path, start_server: Callable[..., AbstractContextManager[servers.InfluxServer]], rows: int, outages: int
) -> tuple[float, float, int]:
    """Return how many rows are there after kills in the middle of `rows`, how many distinct ones, and the kills."""
    port = servers.free_port()
    data = folder / "influx"
    with ExitStack() as stack:
        server = stack.enter_context(start_server(folder, port=port, data=data))
        settings = InfluxSettings(
            url=server.url, token=SecretStr(server.token), org=server.org, bucket="outage", timeout_seconds=10
        )
        with closing(InfluxClient(settings)) as client:
            prepare(client, settings)
        store_settings = StoreSettings(path=folder / "store")
        store = stack.enter_context(closing(InfluxStore(settings, store_settings)))
        store.ship()  # the cursor is there before the first row
        stop = threading.Event()
        shipping = threading.Thread(target=store.keep_shipping, args=(stop,))
        shipping.start()
        kills = 0
        try:
            per_batch = 1_000
            first = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=12)
            for batch in range(rows // per_batch):
                store.write(_batch(first, batch, per_batch))
                due = (batch + 1) * per_batch * outages // rows
                if due > kills:
                    _await_progress(store_settings, kills * rows // outages)
                    os.kill(server.process.pid, signal.SIGKILL)
                    server = stack.enter_context(start_server(folder, port=port, data=data))
                    kills += 1
            _await_progress(store_settings, None)
        finally:
            stop.set()
            shipping.join()
        there = _values(settings)
    return float(len(there)), float(len(np.unique(there))), kills


def _batch(first: datetime, number: int, rows: int) -> Batch:
    tags = {
        "cluster": ["lab"] * rows,
        "node": ["n1"] * rows,
        "gpu": [f"GPU-{i}" for i in range(rows)],
        "slice": ["whole"] * rows,
        "tenant": ["team"] * rows,
        "workload": ["job"] * rows,
    }
    instant = round((first + timedelta(seconds=15 * number)).timestamp() * 1000)
    values = np.arange(number * rows, (number + 1) * rows, dtype=np.float64)
    return Batch(rows={"slice": make_rows("slice", np.full(rows, instant), tags, {"steps_count": values})})


def _await_progress(settings: StoreSettings, cursor: int | None) -> None:
    """Wait until the shipper is past a row number, or has nothing left."""
    limit = time.monotonic() + 300
    while True:
        progress = progress_of(settings, CURSOR)
        if progress.pending == 0 if cursor is None else (progress.cursor or 0) >= cursor:
            return
        if time.monotonic() > limit:
            raise TimeoutError(f"the shipper stands at {progress}")
        time.sleep(0.05)


def _values(settings: InfluxSettings) -> np.ndarray:
    """Return the value of every row that is there."""
    with closing(InfluxClient(settings.model_copy(update={"timeout_seconds": 300.0}))) as client:
        answer = client.select('SELECT "steps_count" FROM "slice"', "outage")
        return np.concatenate([t.column("steps_count").to_numpy() for t in read_answer(answer, (), ("steps_count",))])
