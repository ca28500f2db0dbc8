"""A report in which every part is filled, with names that try to be markup."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from analyzer.defragment.model import Cost
from dashboard.report.capacity import (
    EnergyPart,
    Freed,
    FreeLine,
    HourTerms,
    LedgerPart,
    MigrationPart,
    MoveLine,
    QueueLine,
    TenantUse,
    Term,
)
from dashboard.report.model import (
    CardCoverage,
    ChangeLine,
    ChangesPart,
    Claim,
    Claims,
    DropCount,
    ForecastLine,
    ForecastPart,
    HollowLine,
    PromiseCheck,
    QualityPart,
    RejectLine,
    Report,
    Room,
    Service,
    SickCard,
    Unanalysed,
)
from tuner.service.moves_plan import CardChange, MovesPlan, Role, Share, Step

START = datetime(2026, 1, 5, tzinfo=UTC)
END = START + timedelta(days=1)
SCRIPT = "<script>alert(1)</script>"
TURNED = "abc\u202etxt.exe"  # right-to-left override
MARKUP = "[red]x[/red] *b* `c` | d"
UUID = "GPU-89523c78-1c4a-b660-f6c5-e4596f08fa5c"


def claim(code: str, **changed: object) -> Claim:
    values: dict[str, object] = {
        "id": f"{code.lower()}-0123456789ab",
        "code": code,
        "title": "Idle and held",
        "verdict": "holds",
        "claim": f"{SCRIPT} holds 13% of {UUID}",
        "who": f"team/{SCRIPT}",
        "victim": "",
        "where": f"node-a/{UUID}",
        "effect_value": 0.25,
        "effect_lower": 0.2,
        "effect_upper": 0.3,
        "effect_unit": "ratio",
        "channel": "sm",
        "lag_seconds": 0.0,
        "confidence": 0.9,
        "coverage": 1.0,
        "since": "2026-01-05T01:00:00+00:00",
        "check": f"nvidia-smi -i {UUID} '{SCRIPT}'",
        "action": "Ask the holder.",
        "risk": "it may come back",
    }
    return Claim(**{**values, **changed})  # type: ignore[arg-type]  # a test's shorthand


def migrations() -> MigrationPart:
    """Two plans of one move each; names are hostile."""
    part = Share(SCRIPT, 0.3, Role.LEAVES)
    change = CardChange("n", SCRIPT, (part, Share("", 0.7, Role.FREE)), (Share(MARKUP, 1.0, Role.REQUEST),))
    step = Step(
        "migrate", TURNED, SCRIPT, MARKUP, "n", (SCRIPT,), "m", (TURNED,), None, 0.3, 10.0, 1, 5.0, math.nan
    )  # fmt: skip
    plan = MovesPlan(
        objective="demand", asked=MARKUP, demand_waits=True, steps=(step,), together=0, fits=((SCRIPT, 1),),
        before=1.0, placed=2.0, bound=2.5, gap=0.2, exact=False, cost=Cost(10.0, 1, 5.0, math.nan), freed=(),
        freed_models=(), idle_watts=0.0, changes=(change,), left_out={MARKUP: 1}, protected=1, pods=3, cards=4, none="",
    )  # fmt: skip
    freeing = replace(plan, objective="free-cards", freed=(SCRIPT,), freed_models=("A100",), idle_watts=50.0, fits=())
    return MigrationPart(plan, freeing, Freed(1.0, 500.0, 3.0e7), None, "EUR", {})


def report(*, simulated: bool = True) -> Report:
    level_1 = {"used": 0.4, "reserved": 0.2, "wasted": 0.2, "free": 0.1, "stranded": 0.05, "unobserved": 0.03}
    level_1 |= {"unaccounted": 0.02}
    level_2 = {"useful": 0.8, "contention": 0.1, "throttling": 0.05, "overhead": 0.02, "unrated": 0.04}
    level_2 |= {"unaccounted": -0.01}
    hours = tuple(HourTerms(START + timedelta(hours=h), {**level_1, "useful": 0.32}) for h in range(24))
    change = ChangeLine(
        "g-1", START, "confirmed", "right_size", (f"{SCRIPT}: compute share 10 % to 20 %",), "why", "held", 0.8, 1
    )
    return Report(
        clusters=(SCRIPT,),
        start=START,
        end=END,
        interval_seconds=60.0,
        simulated=simulated,
        summary="Of 10 cards, little was used.",
        ledger=LedgerPart(
            cards=10,
            hours=24.0,
            capacity_sm_seconds=1000.0,
            used_sm_seconds=400.0,
            level_1=tuple(Term(n, 1000 * r, r, 10 * r) for n, r in level_1.items()),
            level_2=tuple(Term(n, 400 * r, r, 4 * r) for n, r in level_2.items()),
            by_hour=hours,
            tenants=(TenantUse(MARKUP, 0.4, 0.3, 0.2, 0.2, 48.0, math.nan, 700.0),),
            price=480.0,
            currency="EUR",
            assumed_sm_count=("c/n/g",),
            estimated_quota=("c/n/g/s",),
        ),
        services=(
            Service(
                f"search/{TURNED}", "c", "search", TURNED, "e2e", 0.999, 0.1, 60.0, 1e6, 0.9995, 1440, 0.98, 0.2,
                tuple((START + timedelta(hours=h), (math.nan, 1.0, 0.97, 0.5)[h % 4]) for h in range(24)), "",
            ),
            Service(
                "search/quiet", "c", "search", "quiet", "ttft", 0.99, 2.0, 60.0,
                math.nan, math.nan, 0, math.nan, math.nan, (), "no requests were seen",
            ),
        ),
        claims=Claims(
            waste=(claim("TT301", owner=SCRIPT, until="2026-01-05T09:00:00+00:00"),),
            fights=(
                claim("TT101", who=f"team/{MARKUP}", victim=f"team/{TURNED}"),
                claim("TT101", verdict="suspected", effect_value=math.nan, effect_lower=math.nan, channel=""),
            ),
            stranded=(claim("TT221"),),
            limits=(claim("TT401", title="Limited by compute"),),
            risks=(claim("TT502", effect_unit="seconds", effect_value=3600.0, effect_lower=3600.0),),
            health=(claim("TT601", effect_unit="count", effect_value=2.0),),
            undecided={"TT101": 3},
            suppressed=2,
            board=(SickCard("node-a GPU 1", "take out of sharing", "critical", "XID", "reset the card"),),
            hollow=(
                HollowLine("team", "online", "mps", 12.5, 0.4, 0.3, math.nan, 1.8),
                HollowLine(MARKUP, "unknown", "whole", 2.0, 0.0, math.nan, math.nan, math.nan),
            ),
            idle_suppressions=(f"TT301 on {SCRIPT} hid nothing",),
            rooms=(
                Room("c", SCRIPT, MARKUP, 8, 2.25, 0.6, 1, 0.75, f"a whole card of type {TURNED}"),
                Room("c", "default", "", 4, 0.0, 0.0, 0, 0.0, ""),
            ),
        ),
        migrations=migrations(),
        forecast=ForecastPart(
            made_at=END,
            lines=(
                ForecastLine(
                    "fleet", 3600.0, END + timedelta(hours=1), {"0.1": 3.0, "0.5": 4.0, "0.9": 6.0}, 0.5, 0.8, 0.79, ""
                ),
                ForecastLine("a/new", math.nan, None, {}, math.nan, math.nan, math.nan, "less than an hour of history"),
            ),
            past=tuple((START + timedelta(hours=h), math.nan if h == 5 else 4.0) for h in range(24)),
            missing="",
        ),
        changes=ChangesPart(
            mode="auto",
            counts={"confirmed": 1, "dropped": 4},
            made=(change,),
            rolled_back=(change,),
            would=(change,),
            drops=(DropCount("dead band", "dropped", 4, SCRIPT),),
            promises=(PromiseCheck("give", 3, 1, 612.0, 0.04),),
            missing="",
        ),
        queues=(QueueLine("c", "p", SCRIPT, 3, 60.0, 600.0, 2.0, 1200.0, 7.5, 1.5, 4.0, 3.0),),
        energy=EnergyPart(3.6e7, 3.6e6, 112500.0, 10),
        quality=QualityPart(
            nodes=2,
            cards=10,
            slices=30,
            coverage=0.97,
            worst=(CardCoverage("c", "node-a", UUID, 0.7),),
            rejects=(RejectLine("power_watts", SCRIPT, 1, 12.0),),
            events={"target_down": 2},
            unanalysed=(
                Unanalysed(
                    "TT101", "One slice hurts another", 30, 20, 8, 2,
                    {"gi1 against it: only 10% are there": 3, "gi2 against it: only 12% are there": 2, "not shared": 2},
                ),
            ),
            undeclared=(f"team/{SCRIPT}",),
        ),
        free=(FreeLine(SCRIPT, "share", MARKUP, 0.25, 2.0**33, START),),
        moves=(MoveLine(f"team/{SCRIPT}", f"other/{MARKUP}", "node-a GPU 1", "ratio", 0.05, 0.1, 0.2, TURNED),),
    )  # fmt: skip
