"""`trimtab forecast`: what each workload and the fleet will need, with intervals and the forecaster's own error."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pandas as pd
import typer

from collector.errors import ConfigurationError, InputRejectedError
from collector.schema import SLICE
from collector.window import parse_duration
from dashboard.cli.context import Json, Now, Rows, context_of, interval_of, newest_instant, opened_rows
from dashboard.cli.output import note, print_json, print_table, say_origin
from dashboard.config_errors import nearest
from dashboard.origin import is_simulated
from dashboard.outlook import USED, Outlook, alive_series, look_ahead, read_history, unit_of


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(forecast)


def forecast(
    ctx: typer.Context,
    *,
    rows: Rows = None,
    field: Annotated[
        str,
        typer.Option("--field", metavar="NAME", help="used, or a field of slices, as memory_used_bytes."),
    ] = USED,
    series: Annotated[
        list[str] | None,
        typer.Option(
            "--series", metavar="NAME", help="Only this one: fleet, cluster/tenant/workload, or that with #0."
        ),
    ] = None,
    horizon: Annotated[
        list[str] | None, typer.Option("--horizon", metavar="LENGTH", help="Such as 6h; else those of [forecast].")
    ] = None,
    now: Now = None,
    json: Json = False,
) -> None:
    """Forecast the load of each workload and of the fleet, with intervals and the forecaster's own error."""
    context = context_of(ctx)
    settings = context.settings.forecast
    horizons = [parse_duration(text) for text in horizon or settings.horizons]
    if field not in (USED, *SLICE.field_names):
        raise ConfigurationError(
            f"expected {USED} or a field of slice rows, got {field!r}{nearest(field, SLICE.field_names)}"
        )
    with opened_rows(context, rows) as store:
        interval = interval_of(store, context.settings.cluster.interval_seconds)
        simulated = is_simulated(store)
        history = read_history(store, newest_instant(store, now, interval), field, settings, interval)
    if series:
        known = sorted(set(history["series"]))
        for name in series:
            if name not in known:
                raise InputRejectedError(f"expected a series with history, got {name!r}{nearest(name, known)}")
        history = history[history["series"].isin(series)]
    else:
        alive = alive_series(history)
        gone = history["series"].nunique() - len(alive)
        history = history[history["series"].isin(alive)]
        if gone:
            note(f"{gone} series had no value in the last hour and are left out; --series NAME shows one")
    if not history["value"].notna().any():
        raise InputRejectedError(f"no slice has a value of {field} in the last {settings.history_days:g} days")
    outlook = look_ahead(history, horizons, settings)
    if json:
        about = {"schema_version": 1, "simulated": simulated, "field": field, "unit": unit_of(field)}
        print_json({**about, **document(outlook)})
        return
    say_origin(simulated=simulated)
    note(f"made at {outlook.made_at:%Y-%m-%d %H:%M} UTC; {field} in {unit_of(field)}; error of the median, back-tested")
    print_table(
        ["series", ">ahead", ">median", ">80 % of the time", ">97.5 % below", ">error", ">vs last value", "note"],
        [_row(outlook, name, ahead, field) for name, ahead in _pairs(outlook.forecasts)],
        empty="nothing can be forecast",
    )


def document(outlook: Outlook) -> dict[str, object]:
    """Return the outlook as JSON values, one entry a series and horizon."""
    return {
        "made_at": outlook.made_at,
        "step_seconds": outlook.step_seconds,
        "forecasts": [
            {
                "series": name,
                "horizon_seconds": ahead,
                "target_time": outlook.made_at + timedelta(seconds=ahead) if ahead == ahead else None,  # noqa: PLR0124
                "quantiles": _quantiles(outlook.forecasts, name, ahead),
                "note": _note(outlook.forecasts, name, ahead),
                "backtest": _error(outlook.errors, name, ahead),
            }
            for name, ahead in _pairs(outlook.forecasts)
        ],
    }


def _pairs(forecasts: pd.DataFrame) -> list[tuple[str, float]]:
    pairs = forecasts[["series", "horizon_seconds"]].drop_duplicates().itertuples(index=False)
    return sorted(((str(name), float(ahead)) for name, ahead in pairs), key=lambda pair: (pair[0] != "fleet", *pair))


def _of(frame: pd.DataFrame, name: str, ahead: float) -> pd.DataFrame:
    return frame[(frame["series"] == name) & ((frame["horizon_seconds"] == ahead) | frame["horizon_seconds"].isna())]


def _quantiles(forecasts: pd.DataFrame, name: str, ahead: float) -> dict[str, float]:
    about = _of(forecasts, name, ahead)
    return {f"{q:g}": float(value) for q, value in zip(about["quantile"], about["value"], strict=True) if q == q}  # noqa: PLR0124


def _note(forecasts: pd.DataFrame, name: str, ahead: float) -> str:
    return str(_of(forecasts, name, ahead)["reason"].iloc[0])


def _error(errors: pd.DataFrame, name: str, ahead: float) -> dict[str, float] | None:
    about = _of(errors, name, ahead) if len(errors) else errors
    if about.empty:
        return None
    row = about.iloc[0]
    return {str(key): float(row[key]) for key in errors.columns if key not in ("series", "horizon_seconds")}


def _row(outlook: Outlook, name: str, ahead: float, field: str) -> list[str]:
    found = _quantiles(outlook.forecasts, name, ahead)
    error = _error(outlook.errors, name, ahead) or {}
    low, high = _amount(found.get("0.1"), field), _amount(found.get("0.9"), field)
    return [
        name,
        f"{ahead / 3600:g} h",
        _amount(found.get("0.5"), field),
        f"{low} to {high}",
        _amount(found.get("0.975"), field),
        _amount(error.get("mae"), field),
        _ratio(error.get("relative_to_last")),
        _note(outlook.forecasts, name, ahead),
    ]


def _amount(value: float | None, field: str) -> str:
    if value is None or value != value:  # noqa: PLR0124  NaN
        return "-"
    return f"{value / 2**30:.2f} GiB" if field.endswith("_bytes") else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}"  # noqa: PLR0124  NaN
