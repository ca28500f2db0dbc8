"""What the pods themselves export: vLLM, Triton, and trainers."""

from __future__ import annotations

from collections.abc import Callable

from sample_data.cluster.exporters.text import head, shortest
from sample_data.cluster.readings import Readings
from sample_data.cluster.simulation import World


class ServerExporter:
    """Writes the metrics page of the pod in a slice."""

    def __init__(self, world: World, edges: list[list[float]]) -> None:
        self._world = world
        self._edges = edges
        self._bucket_texts: dict[int, list[str]] = {}
        self._writers: dict[str, Callable[[int, Readings], str]] = {
            "vllm": self._vllm,
            "triton": self._triton,
            "trainer": self._trainer,
        }

    def text(self, index: int, readings: Readings) -> str:
        """Return the body of one scrape."""
        return self._writers[self._world.spec.slices[index].app](index, readings)

    def _buckets(self, index: int, name: str, labels: str, scale: float, readings: Readings) -> list[str]:
        texts = self._bucket_texts.get(index)
        if texts is None:
            edges = ["+Inf" if e == float("inf") else f"{e * scale:.10g}" for e in self._edges[index]]
            texts = self._bucket_texts[index] = [f'{name}_bucket{{le="{e}",{labels}}} ' for e in edges]
        return [t + str(int(v)) for t, v in zip(texts, readings.buckets[index].tolist(), strict=True)]

    def _vllm(self, index: int, r: Readings) -> str:
        model = f'engine="0",model_name="{self._world.spec.slices[index].name}"'
        e2e, itl = "vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds"
        requests, aborted = int(r.requests[index]), int(r.failures[index])
        name = model.partition(",")[2]
        units = int(r.service_units[index])
        return "\n".join([
            head("vllm:num_requests_running", "gauge", "Number of requests in model execution batches."),
            f"vllm:num_requests_running{{{model}}} {shortest(float(r.running_requests[index]))}",
            head("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
            f"vllm:num_requests_waiting{{{model}}} {shortest(float(r.waiting[index]))}",
            head("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
            f"vllm:kv_cache_usage_perc{{{model}}} {shortest(float(r.kv_cache[index]))}",
            head("vllm:request_success", "counter", "Count of successfully processed requests."),
            f'vllm:request_success_total{{engine="0",finished_reason="stop",{name}}} {max(requests - aborted, 0)}',
            f'vllm:request_success_total{{engine="0",finished_reason="abort",{name}}} {aborted}',
            head("vllm:generation_tokens", "counter", "Number of generation tokens processed."),
            f"vllm:generation_tokens_total{{{model}}} {int(r.tokens[index])}",
            head(itl, "histogram", "Histogram of inter token latency in seconds."),
            f'{itl}_bucket{{{model},le="+Inf"}} {units}',
            f"{itl}_sum{{{model}}} {float(r.service_sum[index])!r}",
            f"{itl}_count{{{model}}} {units}",
            head(e2e, "histogram", "Histogram of end to end request latency in seconds."),
            *self._buckets(index, e2e, model, 1.0, r),
            f"{e2e}_sum{{{model}}} {float(r.latency_sum[index])!r}",
            f"{e2e}_count{{{model}}} {requests}",
            "",
        ])  # fmt: skip

    def _triton(self, index: int, r: Readings) -> str:
        model = f'model="{self._world.spec.slices[index].name}",version="1"'
        name = "nv_inference_first_response_histogram_ms"
        requests = int(r.requests[index])
        return "\n".join([
            head("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes"),
            f"nv_inference_request_success{{{model}}} {requests}",
            head("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes"),
            f'nv_inference_request_failure{{{model},reason="REJECTED"}} {int(r.failures[index])}',
            head("nv_inference_count", "counter", "Number of inferences performed (does not include cached requests)"),
            f"nv_inference_count{{{model}}} {int(r.service_units[index])}",
            head("nv_inference_pending_request_count", "gauge", "Instantaneous number of pending requests"),
            f"nv_inference_pending_request_count{{{model}}} {int(r.waiting[index])}",
            head("nv_inference_compute_infer_duration_us", "counter", "Cumulative compute inference duration"),
            f"nv_inference_compute_infer_duration_us{{{model}}} {r.service_sum[index] * 1e6:.0f}",
            head(name, "histogram", "Duration from request to first response in milliseconds"),
            *self._buckets(index, name, model, 1e3, r),
            f"{name}_sum{{{model}}} {r.latency_sum[index] * 1e3:.0f}",
            f"{name}_count{{{model}}} {requests}",
            "",
        ])  # fmt: skip

    def _trainer(self, index: int, r: Readings) -> str:
        steps = int(r.steps[index])
        return "\n".join([
            head("trainer_steps_total", "counter", "Training steps finished."),
            f"trainer_steps_total {steps}",
            head("trainer_step_seconds", "summary", "Wall time of a training step."),
            f"trainer_step_seconds_sum {float(r.step_seconds_sum[index])!r}",
            f"trainer_step_seconds_count {steps}",
            "",
        ])  # fmt: skip
