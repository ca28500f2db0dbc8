"""Where rows of each tier lie in InfluxDB, and how long they are kept there.

2.x and 3.x: the buckets `<bucket>`, `<bucket>_minute` and `<bucket>_hour`. 1.8+: retention policies of one database,
`<database>/<policy>` (without a name the default one), `minute` and `hour`. Facts, events and rejects lie with the
hours.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from collector.atomic import replacing
from collector.errors import ConfigurationError, UnreachableError
from collector.influx.client import Flavour, InfluxClient
from collector.influx.flux import literal
from collector.influx.texts import TAGS
from collector.schema import MEASUREMENTS
from collector.settings import InfluxSettings
from collector.store.request import HOUR, MINUTE, RAW

_SHARD_SECONDS = {RAW: 86_400, MINUTE: 7 * 86_400, HOUR: 30 * 86_400}
DAY_SECONDS = 86_400
_OURS = frozenset({*MEASUREMENTS, *TAGS})


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tier lies: `bucket` for writing, database and policy for InfluxQL, kept for so many seconds."""

    bucket: str
    database: str
    policy: str
    keep_seconds: int


def keep_days(settings: InfluxSettings) -> dict[str, float]:
    """Return how long each tier is kept, in days."""
    return {RAW: settings.raw_days, MINUTE: settings.minute_days, HOUR: settings.hour_days}


def places(settings: InfluxSettings, flavour: Flavour) -> Mapping[str, Place]:
    """Return the place of each tier."""
    found = {}
    database, _, policy = settings.bucket.partition("/")
    for tier, days in keep_days(settings).items():
        seconds = round(days * DAY_SECONDS)
        if flavour is Flavour.V1:
            own = policy if tier == RAW else tier
            found[tier] = Place(f"{database}/{own}" if own else database, database, own, seconds)
        else:
            bucket = settings.bucket if tier == RAW else f"{settings.bucket}_{tier}"
            found[tier] = Place(bucket, bucket, "", seconds)
    return found


def prepare(client: InfluxClient, settings: InfluxSettings) -> list[str]:
    """Make what is missing and set how long it is kept; return what was done, one line each.

    Needs a token that may make buckets; `trimtab collect` does not.

    Raises:
        TryLaterError: not reachable.
        ConfigurationError: the token may not.
    """
    flavour = client.flavour()
    wanted = places(settings, flavour)
    if flavour is Flavour.V1:
        return _prepare_v1(client, wanted)
    if flavour is Flavour.V2:
        return _prepare_v2(client, settings, wanted)
    return ["InfluxDB 3 makes databases as they are written to; set their retention when you make them yourself"]


def make_token(client: InfluxClient, settings: InfluxSettings, path: Path) -> str:
    """Write a token into `path` that may read and write the buckets, and nothing else; return what was done.

    A token in the file that sees the buckets is kept. Else a new one is made, and those that were made here before for
    these buckets are taken back.

    Raises:
        TryLaterError: not reachable.
        ConfigurationError: the server is no 2.x, a bucket is missing, or the client's own token may not.
        UnreachableError: the file cannot be written.
    """
    flavour = client.flavour()
    if flavour is not Flavour.V2:
        raise ConfigurationError(f"expected InfluxDB 2.x to make a token, got {flavour.value}.x; make a user there")
    wanted = places(settings, flavour)
    if path.exists() and _serves(settings.model_copy(update={"token": None, "token_file": path}), wanted):
        return f"the token in {path} is kept"
    known = _buckets(client, settings, wanted)
    missing = [place.bucket for place in wanted.values() if place.bucket not in known]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)}: expected buckets, found none; trimtab store prepare")
    org = _org_id(client, settings)
    name = f"trimtab: read and write {settings.bucket} (made by trimtab store prepare)"
    before = client.call_json("GET", "/api/v2/authorizations", query={"orgID": org})["authorizations"]
    permissions = [
        {"action": action, "resource": {"type": "buckets", "id": known[place.bucket][0], "orgID": org}}
        for place in wanted.values()
        for action in ("read", "write")
    ]
    body = {"orgID": org, "description": name, "permissions": permissions}
    made = client.call_json("POST", "/api/v2/authorizations", body=body)
    try:
        with replacing(path, mode=0o600) as beside:
            beside.write_text(made["token"], encoding="utf-8")
    except OSError as error:
        client.call_json("DELETE", f"/api/v2/authorizations/{made['id']}")
        raise UnreachableError(f"expected to write {path}, got {error.strerror or type(error).__name__}") from None
    for old in before:
        if old["description"] == name:
            client.call_json("DELETE", f"/api/v2/authorizations/{old['id']}")
    return f"{path} holds a token that may read and write {', '.join(p.bucket for p in wanted.values())} alone"


def _serves(settings: InfluxSettings, wanted: Mapping[str, Place]) -> bool:
    """Whether a token sees all buckets."""
    try:
        with closing(InfluxClient(settings)) as client:
            return {place.bucket for place in wanted.values()} <= _buckets(client, settings, wanted).keys()
    except ConfigurationError:
        return False


def check(client: InfluxClient, settings: InfluxSettings) -> list[str]:
    """Return what is missing or kept for another length of time than configured, one line each; changes nothing.

    Raises:
        TryLaterError: not reachable.
        ConfigurationError: the token is wrong.
    """
    flavour = client.flavour()
    if flavour is Flavour.V3:
        return []
    wanted = places(settings, flavour)
    known = kept_v1(client, wanted[RAW].database) if flavour is Flavour.V1 else kept_v2(client, settings, wanted)
    wrong = []
    for tier, place in wanted.items():
        seen = known.get(place.policy if flavour is Flavour.V1 else place.bucket)
        if seen is None:
            waits = "" if tier == RAW else ": what belongs there waits, raw rows go on"
            wrong.append(f"{place.bucket} is missing{waits}")
        elif seen != place.keep_seconds:
            text = f"{seen / DAY_SECONDS:g} days" if seen else "for ever"
            wrong.append(
                f"{place.bucket} keeps rows {text}, [influx] {tier}_days is {place.keep_seconds / DAY_SECONDS:g}"
            )
    return wrong


def kept_v1(client: InfluxClient, database: str) -> dict[str, int]:
    """Return retention policy -> seconds (0: for ever), the default one also as ``; empty without the database."""
    known, default = _policies(client, database)
    return known | {"": known[default]} if default else known


def _policies(client: InfluxClient, database: str) -> tuple[dict[str, int], str]:
    """Return retention policy -> seconds, and the name of the default one, empty where none is."""
    answer = orjson.loads(client.execute(f'SHOW RETENTION POLICIES ON "{_identifier(database)}"'))
    rows = [
        dict(zip(part["columns"], row, strict=True))
        for part in answer["results"][0].get("series", [])
        for row in part.get("values", [])
    ]
    default = next((row["name"] for row in rows if row["default"]), "")
    return {row["name"]: _go_seconds(row["duration"]) for row in rows}, default


def _go_seconds(text: str) -> int:
    hours, _, rest = text.partition("h")
    minutes, _, seconds = rest.partition("m")
    return int(hours) * 3600 + int(minutes or 0) * 60 + int(float(seconds.rstrip("s") or 0)) if rest else 0


def _identifier(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _prepare_v1(client: InfluxClient, wanted: Mapping[str, Place]) -> list[str]:
    done = []
    database = wanted[RAW].database
    known, default = _policies(client, database)
    if not known:
        _run(client, f'CREATE DATABASE "{_identifier(database)}"')
        done.append(f"database {database} made")
        known, default = _policies(client, database)
    for tier, place in wanted.items():
        policy = place.policy or default
        if not policy:
            raise ConfigurationError(
                f"database {database}: expected a default retention policy for raw rows, found none; name one in "
                f"[influx] bucket, such as {database}/raw"
            )
        length = f"DURATION {place.keep_seconds}s REPLICATION 1 SHARD DURATION {_shard_seconds(tier, place)}s"
        on = f'"{_identifier(policy)}" ON "{_identifier(database)}"'
        if policy not in known:
            _run(client, f"CREATE RETENTION POLICY {on} {length}")
            done.append(f"{database}/{policy} made, kept {place.keep_seconds / DAY_SECONDS:g} days")
        elif known[policy] != place.keep_seconds:
            _refuse_shared(place, partial(_measurements_v1, client, database), known[policy])
            _run(client, f"ALTER RETENTION POLICY {on} {length}")
            done.append(f"{database}/{policy} is now kept {place.keep_seconds / DAY_SECONDS:g} days")
    return done


def _refuse_shared(place: Place, measurements: Callable[[], Iterable[str]], kept_seconds: int) -> None:
    """Refuse to shorten the time that rows of others are kept: what is beyond it would be deleted.

    Args:
        place: where the retention is to be set.
        measurements: looks up what is there.
        kept_seconds: how long rows are kept now; 0: for ever.

    Raises:
        ConfigurationError: the place holds measurements that are not ours.
    """
    if 0 < kept_seconds < place.keep_seconds:
        return
    others = sorted(set(measurements()) - _OURS)
    if others:
        named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise ConfigurationError(
            f"{place.bucket} also holds rows of others ({named}), which keeping {place.keep_seconds / DAY_SECONDS:g} "
            "days would delete; expected a place of Trimtab's own: name another [influx] bucket"
        )


def _measurements_v1(client: InfluxClient, database: str) -> list[str]:
    answer = orjson.loads(client.execute("SHOW MEASUREMENTS", database))
    return [row[0] for part in answer["results"][0].get("series", []) for row in part["values"]]


def _measurements_v2(client: InfluxClient, bucket: str) -> list[str]:
    found = f"schema.measurements(bucket: {literal(bucket)}, start: 1970-01-01T00:00:00Z)"
    with client.flux(f'import "influxdata/influxdb/schema" {found}') as answer:
        rows = csv.DictReader(io.TextIOWrapper(answer, encoding="utf-8", newline=""))
        return [row["_value"] for row in rows]


def _run(client: InfluxClient, statement: str) -> None:
    answer = orjson.loads(client.execute(statement))
    error = answer.get("error") or next((r["error"] for r in answer.get("results", []) if "error" in r), None)
    if error:
        raise ConfigurationError(f"InfluxDB at {client.address} refused `{statement}`: {error}")


def _shard_seconds(tier: str, place: Place) -> int:
    return max(min(_SHARD_SECONDS[tier], place.keep_seconds), 3600)


def kept_v2(client: InfluxClient, settings: InfluxSettings, wanted: Mapping[str, Place]) -> dict[str, int]:
    """Return bucket -> seconds (0: for ever) of those of the wanted buckets that the token sees."""
    return {name: rule for name, (_, rule) in _buckets(client, settings, wanted).items()}


def _buckets(client: InfluxClient, settings: InfluxSettings, wanted: Mapping[str, Place]) -> dict[str, tuple[str, int]]:
    """Return bucket -> id, and seconds that it keeps rows.

    Each is asked for by its name: a list has 100 at most, counted before the token's rights leave out the others.
    """
    known = {}
    for place in wanted.values():
        query = {"org": settings.org, "name": place.bucket}
        found = client.call_json("GET", "/api/v2/buckets", query=query, tolerate=(404,))
        for bucket in found["buckets"] if found else ():
            rule = next((int(r["everySeconds"]) for r in bucket["retentionRules"]), 0)
            known[bucket["name"]] = (bucket["id"], rule)
    return known


def _org_id(client: InfluxClient, settings: InfluxSettings) -> str:
    found = client.call_json("GET", "/api/v2/orgs", query={"org": settings.org})["orgs"]
    if not found:
        raise ConfigurationError(
            f"InfluxDB at {client.address}: expected the organisation {settings.org!r}, found none that the token may "
            "see; correct [influx] org, or use a token that may make buckets"
        )
    return str(found[0]["id"])


def _prepare_v2(client: InfluxClient, settings: InfluxSettings, wanted: Mapping[str, Place]) -> list[str]:
    done = []
    known = _buckets(client, settings, wanted)
    for tier, place in wanted.items():
        rule = {
            "type": "expire",
            "everySeconds": place.keep_seconds,
            "shardGroupDurationSeconds": _shard_seconds(tier, place),
        }
        if place.bucket not in known:
            body = {"orgID": _org_id(client, settings), "name": place.bucket, "retentionRules": [rule]}
            client.call_json("POST", "/api/v2/buckets", body=body)
            done.append(f"bucket {place.bucket} made, kept {place.keep_seconds / DAY_SECONDS:g} days")
        elif known[place.bucket][1] != place.keep_seconds:
            _refuse_shared(place, partial(_measurements_v2, client, place.bucket), known[place.bucket][1])
            client.call_json("PATCH", f"/api/v2/buckets/{known[place.bucket][0]}", body={"retentionRules": [rule]})
            done.append(f"bucket {place.bucket} is now kept {place.keep_seconds / DAY_SECONDS:g} days")
    return done
