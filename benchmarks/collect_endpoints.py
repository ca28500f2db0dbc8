"""Endpoints that answer as dcgm-exporter does, in a process of their own.

`python -m benchmarks.collect_endpoints PORT TARGETS LINES`. Each answer differs from the one before in most of its
values, as an exporter's does. `/count` says how many answers were given, `/least` how many by the target that gave
fewest. Bodies are made before the first answer, so that the server itself costs next to nothing.
"""

from __future__ import annotations

import random
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

METRICS = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", lambda r: str(r.randint(300, 1980))),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", lambda _: "2619"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", lambda r: str(r.randint(40, 90))),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", lambda r: str(r.randint(30, 80))),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", lambda r: f"{r.uniform(60, 700):.6f}"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", None),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", lambda _: "0"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", lambda r: str(r.randint(1, 100))),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", lambda r: str(r.randint(0, 100))),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", lambda _: "0"),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", lambda _: "0"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", lambda _: "0"),
    ("DCGM_FI_DEV_FB_FREE", "gauge", lambda r: str(r.randint(1000, 40000))),
    ("DCGM_FI_DEV_FB_USED", "gauge", lambda r: str(r.randint(1000, 40000))),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", lambda _: "593"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", lambda _: "0"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", lambda _: "0"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", lambda _: "0"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", lambda r: str(r.randint(0, 10**6))),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", lambda _: "0"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", lambda r: f"{r.uniform(0.01, 1):.6f}"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", lambda r: f"{r.random():.6f}"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", lambda r: f"{r.random():.6f}"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", lambda r: str(r.randint(0, 10**10))),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", lambda r: str(r.randint(0, 10**10))),
)
BODIES = 4  # different ones of each target, in turn
_ENERGY = "@"  # stands for the energy counter, which only grows


def body(target: int, gpus: int, step: int) -> str:
    """Return the text of one answer: a line a metric and GPU, each with the labels of its card and pod."""
    rng = random.Random(f"{target} {step}")
    parts = []
    for name, kind, value in METRICS:
        parts.append(f"# HELP {name} What it counts.\n# TYPE {name} {kind}\n")
        for gpu in range(gpus):
            labels = (
                f'gpu="{gpu}",UUID="GPU-{target:08x}-1f00-4000-8000-{gpu:012x}",'
                f'pci_bus_id="00000000:{gpu % 256:02X}:00.0",device="nvidia{gpu}",'
                f'modelName="NVIDIA H100 80GB HBM3",Hostname="node-{target}",DCGM_FI_DRIVER_VERSION="550.90.07",'
                f'container="main",namespace="team-{gpu % 7}",pod="train-{target}-{gpu}"'
            )
            text = _ENERGY if value is None else value(rng)
            parts.append(f"{name}{{{labels}}} {text}\n")
    return "".join(parts)


def main() -> None:
    """Serve until killed."""
    port, targets, lines = (int(word) for word in sys.argv[1:])
    gpus = lines // len(METRICS)
    answers = {f"/{n}": [body(n, gpus, step).encode() for step in range(BODIES)] for n in range(targets)}
    turns = dict.fromkeys(answers, 0)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            if self.path == "/count":
                content = str(sum(turns.values())).encode()
            elif self.path == "/least":
                content = str(min(turns.values())).encode()
            else:
                with lock:
                    turns[self.path] += 1
                    turn = turns[self.path]
                energy = str(10**9 + turn * 10**6).encode()
                content = answers[self.path][turn % BODIES].replace(_ENERGY.encode(), energy)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    socketserver.TCPServer.request_queue_size = 256
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
