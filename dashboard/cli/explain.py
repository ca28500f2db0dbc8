"""`trimtab explain`: a code (what it claims, how, how it can be wrong), or one finding with the rows it rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from analyzer.codes import Code, codes, page
from collector.errors import ConfigurationError, InputRejectedError
from dashboard.cli.context import (
    Context,
    Json,
    Now,
    Rows,
    context_of,
    interval_of,
    opened_rows,
    opened_state,
)
from dashboard.cli.output import note, print_json, print_table, say, say_origin, stdout
from dashboard.config_errors import nearest

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.findings import Finding
    from collector.protocols import StoreReader
    from dashboard.views.names import CardNames

_ID = re.compile(r"(tt\d{3})-[0-9a-f]{4,12}", re.IGNORECASE)
_BUCKETS = 12  # rows of evidence for each subject
_TAGS = {"gpu": ("cluster", "node", "gpu"), "slice": ("cluster", "node", "gpu", "slice"), "node": ("cluster", "node")}


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(explain)


def explain(
    ctx: typer.Context,
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE|FINDING]", help="Such as TT101, or the id of a finding; without one, all codes."),
    ] = None,
    *,
    rows: Rows = None,
    now: Now = None,
    json: Json = False,
) -> None:
    """Say what a code or a finding claims, how it is computed, how it can be wrong and what to do."""
    if code is None:
        _list_all(json=json)
    elif _ID.fullmatch(code.strip()):
        _explain_finding(context_of(ctx), code.strip().lower(), rows, now, json=json)
    else:
        _explain_code(code, json=json)


def _explain_code(text: str, *, json: bool) -> None:
    name = text.strip().upper()
    if name not in codes():
        family = [known for known in codes() if known[:3] == name[:3]]
        raise ConfigurationError(
            f"expected a finding code such as TT101, or the id of a finding, got {text!r}"
            f"{nearest(name, family or codes())}"
        )
    if json:
        print_json({"schema_version": 1, **_document(codes()[name])})
    elif stdout().is_terminal:
        stdout().print(Markdown(page(codes()[name])))
    else:
        typer.echo(page(codes()[name]), nl=False)


def _explain_finding(context: Context, wanted: str, paths: Rows, now: str | None, *, json: bool) -> None:
    finding = None if paths else _recorded(context, wanted)
    with opened_rows(context, paths) as store:
        finding = finding or _found_again(context, store, wanted, now)
        evidence = list(_evidence_rows(store, finding))
        facts = store.facts(finding.window)
    about = codes().get(finding.code)
    if json:
        tables = [
            {**names, "rows": table.assign(time=table["time"].astype(str)).to_dict("records")}
            for names, table in evidence
        ]
        code_ = {} if about is None else _document(about)
        from analyzer.findings import plain  # noqa: PLC0415

        print_json({"schema_version": 1, "finding": finding.to_json(), "code": code_, "evidence_rows": plain(tables)})
        return
    say_origin(simulated=finding.simulated)
    from dashboard.views.names import card_names, named  # noqa: PLC0415

    cards = card_names(facts)
    _print_finding(finding, about, cards)
    for names, table in evidence:
        say("")
        told = {"measurement", "node"} if names.get("gpu") in cards else {"measurement"}  # a card's name tells its node
        place = "/".join(value for name, value in names.items() if name not in told)
        say(f"rows of {names['measurement']} {named(place, cards)}, means:")
        fields = [str(name) for name in table.columns if name != "time"]
        cells = [(f"{at:%m-%d %H:%M}", *(_figure(v) for v in values)) for at, *values in table.itertuples(index=False)]
        print_table(["from (UTC)", *(f">{name}" for name in fields)], cells)


def _print_finding(finding: Finding, about: Code | None, cards: CardNames) -> None:
    from dashboard.cli.analysis_tables import effect_text  # noqa: PLC0415  loads every analyzer
    from dashboard.views.names import named  # noqa: PLC0415

    title = finding.code if about is None else f"{finding.code}, {about.title}"
    say(f"{finding.id} ({title}): {finding.verdict.value}")
    say("")
    say(named(finding.claim, cards))
    say("")
    window = f"{finding.window.start:%Y-%m-%d %H:%M} to {finding.window.end:%Y-%m-%d %H:%M} UTC"
    print_table(
        ["", ""],
        [
            ("size", effect_text(finding)),
            ("how sure", f"{finding.confidence:.0%}, on {finding.coverage:.0%} of the samples"),
            ("window", window),
            *((name, _told(name, value)) for name, value in finding.evidence.items()),
            *(("needs", need) for need in finding.needs),
        ],
    )
    if about is not None:
        say("")
        say(f"how it is computed: {about.computed.strip()}")
    say("")
    say(f"how it can be wrong: {finding.risk}")
    if about is not None:
        say("")
        say(f"what to do: {about.action.strip()}")


def _recorded(context: Context, wanted: str) -> Finding | None:
    """Return the finding with an id, or one beginning, out of the state database."""
    if not context.has_state:
        return None
    from dashboard.views.findings import finding_of  # noqa: PLC0415
    from tuner.state.findings import list_findings  # noqa: PLC0415

    with opened_state(context) as state:
        found = [finding_of(s) for s in list_findings(state, code=wanted[:5].upper()) if s.id.startswith(wanted)]
    return _the_one(found, wanted) if found else None


def _found_again(context: Context, store: StoreReader, wanted: str, now: str | None) -> Finding:
    """Look for the finding in the rows: nobody has recorded it."""
    from dashboard.cli.analysis import analysed_window  # noqa: PLC0415
    from tuner.service.analyse import load_detectors, run_analysis  # noqa: PLC0415

    code = wanted[:5].upper()
    settings = context.settings.analyze.model_copy(update={"select": (code,), "ignore": ()})
    detectors = load_detectors(settings)
    if not detectors:
        raise ConfigurationError(f"expected the id of a finding that something computes, got {wanted!r}")
    interval = interval_of(store, context.settings.cluster.interval_seconds)
    window = analysed_window(store, now, settings.window, interval)
    note(f"looking for it in the rows from {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC")
    found = run_analysis(
        store,
        window,
        interval_seconds=interval,
        settings=settings,
        detectors=detectors,
        declarations=context.settings.workload,
    ).findings
    matching = [f for f in found if f.id.startswith(wanted)]
    if not matching:
        known = ", ".join(f.id for f in found[:5]) or "none"
        raise InputRejectedError(f"expected the id of a finding, got {wanted!r}; of {code} there are: {known}")
    return _the_one(matching, wanted)


def _the_one(found: list[Finding], wanted: str) -> Finding:
    if len(found) > 1:
        raise ConfigurationError(f"expected one finding, {wanted!r} begins {', '.join(f.id for f in found[:5])}")
    return found[0]


def _evidence_rows(store: StoreReader, finding: Finding) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Yield the rows that a finding rests on: of each subject the fields that its code needs, in a few buckets."""
    from analyzer.settings import AnalyzeSettings  # noqa: PLC0415
    from tuner.service.analyse import load_detectors  # noqa: PLC0415

    detectors = load_detectors(AnalyzeSettings(select=(finding.code,)))
    needs = next((d.needs[finding.code] for d in detectors.values() if finding.code in d.needs), {})
    minutes = max(finding.window.seconds / 60 / _BUCKETS, 1.0)
    every = timedelta(minutes=next((m for m in (1, 5, 10, 15, 30, 60, 120, 240, 360, 720) if m >= minutes), 1440))
    seen: set[tuple[str, ...]] = set()
    for subject in finding.subjects:
        for measurement, fields in needs.items():
            if measurement not in _TAGS:
                continue
            where = {tag: getattr(subject, tag) for tag in _TAGS[measurement]}
            key = (measurement, *where.values())
            if key in seen or not all(where.values()):
                continue
            seen.add(key)
            table = _bucketed(store, finding, measurement, fields, where, every)
            if len(table):
                yield {"measurement": measurement, **where}, table


def _bucketed(  # noqa: PLR0917 - a reading has that many sides
    store: StoreReader,
    finding: Finding,
    measurement: str,
    fields: tuple[str, ...],
    where: dict[str, str],
    every: timedelta,
) -> pd.DataFrame:
    names = list(dict.fromkeys(name for field in fields for name in field.split("|")))
    rows = store.read(measurement, finding.window, fields=names, where=where, every=every, aggregate="mean")
    told = [name for name in names if name in rows and rows[name].notna().any()]
    return rows.groupby("time", as_index=False)[told].mean() if told else rows.head(0)


def _figure(value: float) -> str:
    return "-" if value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN


def _told(name: str, value: Any) -> str:
    """Return a value of the evidence as people read it; its name tells the unit."""
    if isinstance(value, dict):
        text = ", ".join(f"{key} {_told(str(key), part)}" for key, part in value.items())
    elif isinstance(value, list | tuple):
        text = "; ".join(_told(name, part) for part in value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, datetime):
        text = f"{value:%Y-%m-%d %H:%M} UTC"
    elif isinstance(value, int | float):
        text = _amount(name, value)
    else:
        text = "" if value is None else str(value)
    return text or "-"


def _amount(name: str, value: float) -> str:
    if math.isnan(value) or isinstance(value, int):
        return "" if math.isnan(value) else str(value)
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    return f"{value:.1%}" if name.endswith("_ratio") else _figure(value)


def _list_all(*, json: bool) -> None:
    if json:
        print_json({"schema_version": 1, "codes": [_document(code) for code in codes().values()]})
        return
    rows = [(code.code, code.title, "yes" if code.implemented else "not yet") for code in codes().values()]
    print_table(["code", "claim", "there"], rows)


def _document(code: Code) -> dict[str, object]:
    return {
        "code": code.code,
        "title": code.title,
        "scope": code.scope.value,
        "claim": code.claim,
        "computed": code.computed,
        "risk": code.risk,
        "action": code.action,
        "implemented": code.implemented,
    }
