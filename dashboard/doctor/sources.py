"""The doctor's look at the sources: do they answer, which exporters are there, what is partial, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import grid_floor
from collector.collect import add_scrapes
from collector.errors import TrimtabError, UnreachableError
from collector.mappings import MappingTable, mapping_table
from collector.masking import mask_address
from collector.plugins import SourceContext, load_plugin
from collector.prometheus import PrometheusSource
from collector.prometheus_roster import SharedAddress
from collector.protocols import Source
from collector.readings import Gathering
from collector.schema import ACTIVITY, UNKNOWN
from collector.settings import SourceSettings
from collector.support import ways_to
from collector.words import plural
from dashboard.config import Settings, source_context
from dashboard.doctor.check import (
    DOWN_ADVICE,
    Check,
    State,
    Status,
    down_checks,
    down_text,
    note,
    ok,
    problem,
    reject_text,
    some,
)
from dashboard.doctor.families import FamilyBook
from dashboard.doctor.rows import CENSUS_ADVICE
from dashboard.doctor.support import cards_of, not_there

Labels = Mapping[str, str]
_GRANT = "on Kubernetes grant the account what deploy/kubernetes/rbac.yaml lists; on Slurm run the command by hand"
_LOOKS = 3  # cycles after which doubled cards and those that nobody shows are told


def examine_sources(settings: Settings, now: datetime) -> Iterator[Check]:
    """Ask each source once, write nothing, and say what came and what did not."""
    if not settings.source:
        yield note("sources", "none configured: rows come by `trimtab import`, or `trimtab collect --target URL`")
        return
    table = mapping_table(settings.mapping)
    book = FamilyBook()
    answered: list[_Answer] = []
    yield from _read(settings, now, answered)
    for answer in answered:
        book.add_kind(answer.kind)
        yield from _exporters(answer, table, book)
    yield from book.checks()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the targets of one source said (nothing is known of those of a third-party source)."""

    topic: str
    kind: str
    place: str
    scrapes: Sequence[Scrape] = ()


def _advice(error: TrimtabError, source: SourceSettings) -> str:
    if not isinstance(error, UnreachableError):
        return "trimtab config check"
    if source.kind == "prometheus":
        return f"{DOWN_ADVICE} curl -sS {mask_address(source.url).rstrip('/')}/-/ready"
    return _target_advice(source.kind, source.url or (source.targets[0].url if source.targets else ""))


def _target_advice(kind: str, address: str) -> str:
    """Return how to look at a target that does not answer: what can be done where the doctor runs."""
    place = mask_address(address)
    if kind == "nvml":
        return "does nvidia-smi work on this host? else remove the [[source]] table"
    if kind == "prometheus":
        return f"Prometheus itself cannot scrape {place}: its page /targets says why"
    if kind == "slurm":
        return f"run it by hand as this user: {place.removeprefix('slurm:')}"
    if kind == "kubernetes":
        return f"{DOWN_ADVICE} kubectl get --raw /readyz"
    if place.startswith(("http://", "https://")):
        return f"{DOWN_ADVICE} curl -sS {place}"
    return DOWN_ADVICE


def _context(source: SourceSettings, settings: Settings) -> SourceContext:
    return source_context(source, settings, settings.cluster.interval_seconds)


def _read(settings: Settings, now: datetime, answered: list[_Answer]) -> Iterator[Check]:
    """Read all sources as the collector does, those of a cluster together; add to `answered` those that did."""
    advice: dict[str, str] = {}
    gathered: dict[SourceContext, dict[str, Scrape]] = {}
    topics: dict[SourceContext, list[str]] = {}
    for index, source in enumerate(settings.source):
        topic = f"source {source.name or f'{source.kind} {index + 1}'}"
        try:
            said, remarks = _ask(topic, source, settings, now)
        except TrimtabError as error:
            yield problem(topic, str(error), _advice(error, source))
            continue
        asked = [] if isinstance(said, Batch) else said
        answered.append(_Answer(topic, source.kind, mask_address(source.url), asked))
        advice.update((one.target.url, _target_advice(source.kind, one.target.url)) for one in asked)
        yield from remarks
        if isinstance(said, Batch):
            yield from _judge(topic, said, advice)
        else:
            context = _context(source, settings)
            add_scrapes(gathered.setdefault(context, {}), said)
            topics.setdefault(context, []).append(topic)
    instant = grid_floor(now, settings.cluster.interval_seconds)
    for context, scrapes in gathered.items():
        batch = _assembled(context, list(scrapes.values()), instant)
        together = "sources" if len(gathered) == 1 else f"sources of {context.cluster}"
        about = topics[context][0] if len(topics[context]) == 1 else together
        yield from _judge(about, batch, advice, scrapes.values())


def _assembled(context: SourceContext, scrapes: Sequence[Scrape], instant: datetime) -> Batch:
    """Return what a collector makes of these answers, with what it would say of the cards if they came again."""
    assembler = Assembler(context)
    batch = assembler.assemble(instant, scrapes)
    for again in range(1, _LOOKS):
        later = assembler.assemble(instant + again * timedelta(seconds=context.interval_seconds), scrapes)
        batch.events += [event for event in later.events if event.code in CENSUS_ADVICE]
    return batch


def _ask(
    topic: str, source: SourceSettings, settings: Settings, now: datetime
) -> tuple[Batch | list[Scrape], list[Check]]:
    """Return what a source's targets said, or the rows of one that makes its own; and remarks on how it was asked."""
    made: Source = load_plugin("trimtab.sources", source.kind)(source, _context(source, settings))
    try:
        if isinstance(made, PrometheusSource):
            said = made.gather(now)
            remarks = [_shared(topic, one) for one in made.shared_addresses()]
            return said, remarks + _strangers(topic, made.strangers_down())
        return (made.gather(now) if isinstance(made, Gathering) else made.poll(now)), []
    finally:
        if hasattr(made, "close"):
            made.close()


def _strangers(topic: str, down: Sequence[str]) -> list[Check]:
    """Name targets of a Prometheus that are down and were never seen to tell anything of use."""
    if not down:
        return []
    names = some([mask_address(one) for one in down], 3)
    text = f"{plural(len(down), 'target is', 'targets are')} down that may be none of yours: {names}"
    return [note(topic, text, "where one of them is an exporter of cards: Prometheus's page /targets says why")]


def _shared(topic: str, address: SharedAddress) -> Check:
    """Say that several machines share one address, and what is not seen for it."""
    place, count = mask_address(address.address), len(address.machines)
    told = f"{place}: {count} machines share this job and instance; told apart as {some(list(address.machines))}"
    advice = "give each target an `instance` of its own (relabel_configs of Prometheus)"
    if address.mixed:
        mixed = f"partial: {place}: {address.mixed} series of several machines have the same labels, and are left out"
        return problem(topic, mixed, advice)
    if address.alternates:
        text = f"partial: {place}: each scrape shows another one of {count} machines, so each is seen now and then"
        return problem(topic, text, "let Prometheus scrape each pod, not their service (role: pod or endpoints)")
    return note(topic, told, advice)


def _judge(topic: str, batch: Batch, advice: Mapping[str, str], scrapes: Collection[Scrape] = ()) -> Iterator[Check]:
    down = [
        (address, down_text(address, event.message), advice.get(address) or _target_advice("", address))
        for event in batch.events
        if event.code == "target_down"
        for address in [event.subject.object]
    ]
    late = [mask_address(one.target.url) for one in scrapes if one.resting]
    down += [(one, f"{one}: nothing came in the time that a cycle waits", _target_advice("", one)) for one in late]
    yield from down_checks(topic, down)
    for event in batch.events:
        if event.code == "source_denied":
            yield Check(topic, Status.NOTE, f"partial: {event.message}", _GRANT, "scheduler", State.PARTIAL)
        elif event.code in CENSUS_ADVICE:
            yield note(topic, f"{event.subject.node}: {event.message}", CENSUS_ADVICE[event.code])
    rows = {name: table.num_rows for name, table in batch.rows.items() if table.num_rows}
    if rows:
        yield ok(topic, "answers: " + ", ".join(f"{count} {name} rows" for name, count in rows.items()))
    elif any(fact.subject.kind in ("node", "pod") for fact in batch.facts):
        yield ok(topic, "answers; nobody asks for a card")
    elif not down:
        text = "answers, and no row can be made of what it says"
        yield problem(topic, text, "does it see any card? nvidia-smi -L on the node; else a [[mapping]] is needed")
    yield from read_quality(topic, batch)
    yield from not_there(topic, batch)


def read_quality(topic: str, batch: Batch) -> Iterator[Check]:
    """Say which parts of a picture are missing in what a source gave."""
    gpu, slices = batch.rows.get("gpu"), batch.rows.get("slice")
    if gpu is not None and gpu.num_rows:
        blind = gpu.num_rows - int(_any_present(gpu, ACTIVITY).sum())
        unprofiled = gpu.num_rows - int(_any_present(gpu, ACTIVITY[:2]).sum())
        if blind:
            text = f"{blind} of {plural(gpu.num_rows, 'card')} without any activity"
            yield problem(topic, text, "let the exporter collect DCGM_FI_DEV_GPU_UTIL or DCGM_FI_PROF_SM_ACTIVE")
        if unprofiled > blind:
            text = f"{unprofiled - blind} of {plural(gpu.num_rows, 'card')} with GPU_UTIL only: little on a shared card"
            yield note(topic, text, _profiling_advice(batch))
    if slices is not None and slices.num_rows:
        unknown = sum(name == UNKNOWN for name in slices.column("workload").to_pylist())
        if unknown:
            text = f"the holder of {unknown} of {plural(slices.num_rows, 'slice')} is not told yet"
            yield note(topic, text, "pod labels on dcgm-exporter, and kube-state-metrics (kube_pod_labels)")
    counts: Counter[str] = Counter()
    for reject in batch.rejects:
        counts[reject_text(reject.field, reject.reason)] += reject.count
    if counts:
        names = [f"{count} x {name}" for name, count in counts.most_common()]
        yield note(
            topic,
            f"{plural(counts.total(), 'sample')} invalid or corrected: {some(names)}",
            "invalid ones count as absent",
        )


def _profiling_advice(batch: Batch) -> str:
    """Return by which ways the cards of a batch may have profiling metrics."""
    cards = set(cards_of(batch).values())
    ways = {way for card in cards for way in ways_to("gpu.sm_active_ratio", *card)}
    if cards and not ways:
        return "these cards have no profiling metrics"
    if "nvml gpm" in ways:
        return "let dcgm-exporter collect the DCGM_FI_PROF_ fields; by NVML they come with the second cycle"
    return "let dcgm-exporter collect the DCGM_FI_PROF_ fields"


def _any_present(table: pa.Table, fields: Iterable[str]) -> np.ndarray:
    present = np.zeros(table.num_rows, dtype=bool)
    for name in fields:
        if name in table.column_names:
            present |= ~np.isnan(table.column(name).to_numpy(zero_copy_only=False).astype(np.float64))
    return present


def _exporters(answer: _Answer, table: MappingTable, book: FamilyBook) -> Iterator[Check]:
    """Say which exporters are behind each target; of the many behind a Prometheus, together."""
    together: list[tuple[str, Labels]] = []
    for scrape in answer.scrapes:
        if scrape.body is None:
            continue
        place = mask_address(scrape.target.url)
        said = [(series.name, series.labels) for series in scrape.body.series]
        book.add(place, said, table)
        if answer.kind == "prometheus":
            together += said
        else:
            yield _detected(answer.topic, place, said, table)
    if answer.kind == "prometheus":
        yield _detected(answer.topic, answer.place, together, table)


def _detected(topic: str, place: str, series: list[tuple[str, Labels]], table: MappingTable) -> Check:
    found: Counter[str] = Counter()
    strange = 0
    for name, labels in series:
        exporters = {mapped.exporter.exporter for mapped in table.find(name, labels)}
        found.update(exporters)
        strange += not exporters
    if found:
        names = ", ".join(f"{name} ({count} series)" for name, count in found.most_common())
        return ok(topic, f"{place}: {names}, {strange} series of no use")
    if not series:
        return problem(topic, f"{place}: an answer without any sample", "is it the right address?")
    text = f"{place}: {len(series)} series, none of an exporter that is known"
    return problem(topic, text, "trimtab config example: see [[mapping]]")
