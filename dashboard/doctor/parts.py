"""The doctor's look at all but rows and sources: configuration, store, state, kill switch, backends, promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta

import pandas as pd

from collector.declarations import OWNER
from collector.errors import TrimtabError
from collector.history import imported_until
from collector.plugins import load_plugin
from collector.protocols import StoreReader
from collector.schema import ACTIVITY, MEASUREMENTS
from collector.window import Window
from collector.words import plural
from dashboard.config import Loaded, Settings
from dashboard.config_check import check_settings
from dashboard.doctor.check import Check, note, ok, problem, some, span_text
from dashboard.doctor.rows import LOOK_BACK, Seen, examine_rows
from dashboard.origin import is_simulated
from tuner import killswitch
from tuner.model import Freeze, Mode
from tuner.service.promises import resolve_promises
from tuner.settings import BackendSettings

LONG_PAUSE = timedelta(hours=1)


def examine_configuration(loaded: Loaded) -> Iterator[Check]:
    """Say which file counts, and what is wrong in it."""
    if loaded.path is None:
        yield note("configuration", "no file found; defaults and environment hold", "trimtab config example")
    else:
        yield ok("configuration", f"{loaded.path} is read")
    for wrong in check_settings(loaded):
        yield problem("configuration", str(wrong), "trimtab config check")


def examine_store(settings: Settings, now: datetime) -> Iterator[Check]:
    """Say whether the store opens, what it holds, what the rows mean, and what is promised about the workloads."""
    from collector.influx.store import open_store  # noqa: PLC0415  DuckDB loads slowly
    from collector.store import EmbeddedStore  # noqa: PLC0415

    here = (settings.store.path / "store.db").exists() or not settings.influx.url
    try:
        store: StoreReader = (
            EmbeddedStore(settings.store, read_only=True)
            if here
            else open_store(settings.influx, settings.store, read_only=True)  # a host that only looks
        )
    except TrimtabError as error:
        yield problem("store", str(error), "trimtab collect, or trimtab import FILE...")
        return
    with closing(store):
        try:
            yield from _examine_stored(store, settings, now)
        except TrimtabError as error:
            if not here:  # all that can go wrong here is InfluxDB's, and is told with it
                yield note("store", "none on this host; its rows are asked of InfluxDB, which does not give them")
                return
            yield problem("store", str(error), "restore the store's folder, or set store.path to another one")


def _examine_stored(store: StoreReader, settings: Settings, now: datetime) -> Iterator[Check]:
    from collector.store.info import describe_store  # noqa: PLC0415

    spans = {name: span for name in MEASUREMENTS if (span := store.span(name)) is not None}
    if spans:
        held = [f"{name} {span.start:%Y-%m-%d %H:%M} to {span.end:%Y-%m-%d %H:%M}" for name, span in spans.items()]
        yield ok("store", f"{_place(settings)} opens: {', '.join(held)} UTC")
    else:
        yield note("store", f"{_place(settings)} opens and holds no rows")
    lost = describe_store(settings.store).lost_rows
    if lost:
        yield problem(
            "store",
            f"{plural(lost, 'row')} had to go before being shipped, for want of disk",
            "look why shipping is behind (trimtab store status), or raise store.disk_max_bytes",
        )
    simulated = is_simulated(store)
    if simulated and spans:
        # The clock of a simulation is its newest row.
        now = max(span.end for span in spans.values())
        yield note("store", "these rows are simulated; ages are counted from the newest one")
    yield from examine_rows(look(store, settings, now))
    yield from _promises(store, settings, now)


def _place(settings: Settings) -> str:
    here = settings.store.path
    return str(here) if (here / "store.db").exists() else f"InfluxDB (there is none in {here})"


def look(store: StoreReader, settings: Settings, now: datetime) -> Seen:
    """Read what `examine_rows` needs."""
    window = Window(now - LOOK_BACK, now + timedelta(milliseconds=1))
    return Seen(
        now=now,
        interval_seconds=settings.cluster.interval_seconds,
        gpu=store.latest("gpu", at=now, lookback=LOOK_BACK, fields=list(ACTIVITY)),
        slice=store.latest("slice", at=now, lookback=LOOK_BACK, fields=list(ACTIVITY)),
        events=store.events(window),
        rejects=store.rejects(window),
        live=bool(settings.source),
        imported=imported_until(store.facts(window)),
    )


def _promises(store: StoreReader, settings: Settings, now: datetime) -> Iterator[Check]:
    window = Window(now - LOOK_BACK, now + timedelta(milliseconds=1))
    held: pd.DataFrame = store.read("slice", window, fields=["sm_quota_ratio"], by=OWNER, aggregate="count")
    promises = resolve_promises(store.facts(window), held, settings.workload)
    missing = [f"{tenant}/{workload}" for (_, tenant, workload), found in promises.items() if not found.declared]
    if not promises:
        return
    if missing:
        text = f"{len(missing)} of {len(promises)} are undeclared, so never lowered: {some(missing)}"
        yield note("workloads", text, "declare them with [[workload]] or annotations; trimtab workloads lists them")
    else:
        yield ok("workloads", f"all {len(promises)} are declared")


def examine_state(settings: Settings) -> Iterator[Check]:
    """Say whether the state database answers, its journal is whole, and no change hangs half way."""
    from tuner.audit import verify_chain  # noqa: PLC0415  SQLAlchemy loads slowly
    from tuner.state import open_state  # noqa: PLC0415
    from tuner.state.plans import count_states, open_groups  # noqa: PLC0415

    if not settings.state.url and not settings.state.path.exists():
        folder = next(path for path in settings.state.path.absolute().parents if path.exists())
        if os.access(folder, os.W_OK):
            yield ok("state", f"{settings.state.path} will be made by the first `trimtab tune`")
        else:
            yield problem("state", f"{settings.state.path} cannot be made: {folder} is not writable", "set state.path")
        return
    try:
        with closing(open_state(settings.state)) as state:
            audit = verify_chain(state)
            hanging = open_groups(state)
            count = sum(count_states(state).values())
    except TrimtabError as error:
        yield problem("state", str(error), "check [state]")
        return
    if audit.ok:
        yield ok(
            "state",
            f"opens; {plural(count, 'change')}, journal of {plural(audit.entries, 'entry', 'entries')} is whole",
        )
    else:
        yield problem(
            "state", f"the journal is broken: {audit.problem}", "trimtab audit verify; keep a copy of the file"
        )
    if hanging:
        names = [f"{record.id} ({record.state.value})" for record in hanging]
        yield note(
            "state", f"{plural(len(hanging), 'change is', 'changes are')} under way: {some(names)}", "trimtab changes"
        )


def examine_pause(settings: Settings, now: datetime) -> Iterator[Check]:
    """Say whether the kill switch is on, and whether it was forgotten."""
    found = killswitch.read(settings.state.kill_switch)
    if found.level is Freeze.NONE:
        yield ok(
            "kill switch", f"off ({settings.state.kill_switch} does not exist); mode is {settings.tuner.mode.value}"
        )
        return
    advice = "trimtab resume ends it"
    if settings.tuner.mode is Mode.RECOMMEND:
        yield note("kill switch", f"{found}; the mode is recommend, so nothing would be changed anyway", advice)
        return
    try:
        since = datetime.fromisoformat(found.since)
    except ValueError:
        yield problem("kill switch", str(found), advice)
        return
    age = now - since
    make = problem if age > LONG_PAUSE else note
    yield make("kill switch", f"{found}; that is {span_text(age)}", advice)


def examine_backends(settings: Settings) -> Iterator[Check]:
    """Say whether each backend loads, answers, and what it can set."""
    configured = settings.backend or (BackendSettings(),)
    for backend in configured:
        topic = f"backend {backend.kind}"
        if backend.kind == "simulator":
            yield note(topic, "lives inside `trimtab demo` only; here nothing would be changed")
            continue
        if backend.kind == "dry-run":
            yield ok(topic, "changes nothing; it shows what would be done, from the quotas that the store knows")
            continue
        try:
            made = load_plugin("trimtab.backends", backend.kind)(backend)
            knobs = [knob.name for knob in made.knobs()]
            targets = len(made.read().targets)
        except TrimtabError as error:
            yield problem(topic, str(error), "check [[backend]]")
            continue
        real = "nothing real is behind it" if made.simulated or made.changes_nothing else "real"
        yield ok(topic, f"answers ({real}); {targets} targets; sets {some(sorted(set(knobs)), 6) or 'nothing'}")
