"""Benchmarks: one module a subject, each with `run(seeds) -> list[Figure]`; `python -m benchmarks SUBJECT [--json]`."""
