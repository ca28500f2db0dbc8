"""Contention: slices that slow each other, with the evidence."""

from __future__ import annotations

import streamlit as st

from analyzer.findings import Finding, Role, Verdict
from collector.words import plural
from dashboard.app_parts import charts, loaders, page
from dashboard.views import contention
from dashboard.views.findings import Claims
from dashboard.views.names import card_names, named
from dashboard.views.reading import Look
from dashboard.views.text import NO_DATA, escaped, stamp

_COLOURS = {"holds": "red", "suspected": "orange", "cannot tell": "gray", "no effect found": "green"}
_COLUMNS = {
    "verdict": "verdict",
    "effect": st.column_config.NumberColumn("slower by", format="%.0f %%"),
    "lower": st.column_config.NumberColumn("at least", format="%.0f %%", help="Lower end of the 95 % interval."),
    "upper": st.column_config.NumberColumn("at most", format="%.0f %%", help="Upper end of the 95 % interval."),
    "confidence": st.column_config.NumberColumn(format="%.0f %%"),
    "id": None,
}


def _detail(look: Look, finding: Finding, names: dict[str, str]) -> None:
    verdict = finding.verdict.value
    with st.container(border=True):
        st.badge(verdict, color=_COLOURS[verdict])  # type: ignore[arg-type]  # one of the colours above
        st.markdown(f"#### {escaped(named(finding.claim, names))}")
        st.markdown(f":material/help: **How this could be wrong:** {escaped(finding.risk)}")
        if finding.needs:
            st.markdown(f":material/search: **What would decide it:** {escaped(', '.join(finding.needs))}")
        plan = loaders.newest_plan() if contention.asks_for_a_throttle(finding) else None
        for line in () if plan is None else contention.withheld(finding, plan.notes, loaders.facts(look.window)):
            st.markdown(f":material/block: The tuner cannot throttle it: {escaped(line)}.")
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    table, field = loaders.read(contention.together, look, contention.key_of(victim), contention.key_of(suspect))
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Both over time**")
        if field:
            st.echarts_chart(
                charts.pair_over_time(table, contention.who(victim), contention.who(suspect), field),
                height=320,
                alt=f"{contention.COST_WORDS[field]} of {contention.who(victim)} above the activity of the suspect",
            )
        else:
            page.empty("The victim tells no service time or latency in this range.", icon=":material/block:")
    with right:
        st.markdown("**One against the other**")
        if field:
            st.echarts_chart(
                charts.pair_scatter(table, contention.who(suspect), field),
                height=320,
                alt="Each point is a moment: further right the suspect is busier, further up the victim slower",
            )
    st.caption(
        "The claim counts the whole swing of the suspect, from idle to its busiest, with the load of the victim, "
        "the time of day and others held constant; the charts show raw moments."
    )
    with st.expander("The evidence"):
        st.dataframe(contention.evidence(finding), hide_index=True)
        st.caption(f"finding {finding.id}, code {finding.code}; `trimtab explain {finding.code}` says how it is made")


def _pairs(look: Look, claims: Claims, names: dict[str, str]) -> None:
    found = claims.of("TT10")
    counts = {v: sum(f.verdict is v for f in found) for v in Verdict}
    with st.container(horizontal=True):
        for verdict, words in (
            (Verdict.HOLDS, "Hurts: holds"),
            (Verdict.SUSPECTED, "Suspected"),
            (Verdict.CANNOT_TELL, "Cannot tell"),
            (Verdict.NO_EFFECT, "No effect found"),
        ):
            st.metric(words, counts[verdict], border=True, width=168)
    hidden = f" · {plural(claims.suppressed, 'finding')} suppressed" if claims.suppressed else ""
    st.caption(f"Analysed up to {stamp(claims.as_of)} UTC, {plural(len(found), 'pair')}{hidden}")
    if not found:
        page.empty("No two slices that share a card could be compared in this range.")
        return
    worth = [Verdict.HOLDS, Verdict.SUSPECTED] if counts[Verdict.HOLDS] + counts[Verdict.SUSPECTED] else list(Verdict)
    verdicts = st.pills(
        "Verdicts",
        [v.value for v in Verdict],
        default=[v.value for v in worth],
        selection_mode="multi",
        key="contention_verdicts",
    )
    shown = [f for f in found if f.verdict.value in (verdicts or [])]
    if not shown:
        page.empty("No pair has such a verdict.", icon=":material/filter_alt_off:")
        return
    table = contention.pairs(shown, names)
    left, right = st.columns([3, 2], gap="large")
    with left:
        event = st.dataframe(
            table,
            hide_index=True,
            height=360,
            column_config=_COLUMNS,
            on_select="rerun",
            selection_mode="single-row",
            placeholder=NO_DATA,
            key="contention_table",
            alt="Pairs of slices with verdict and effect",
        )
    with right:
        st.markdown("**How much slower, with its 95 % interval**")
        st.echarts_chart(
            charts.intervals(table.head(14)), height=330, alt="Slow-down of each victim with its interval", key="forest"
        )
    picked = event["selection"]["rows"][:1]
    chosen = shown[picked[0]] if picked and picked[0] < len(shown) else shown[0]
    _detail(look, chosen, names)


def _apart(claims: Claims, names: dict[str, str]) -> None:
    """List who must not share a card, seen together or not."""
    st.subheader("Who must not share a card", anchor=False)
    told = claims.of("TT111")
    apart = [f for f in told if f.verdict in {Verdict.HOLDS, Verdict.SUSPECTED}]
    together = sum(f.verdict is Verdict.NO_EFFECT for f in told)
    open_ = sum(f.verdict is Verdict.CANNOT_TELL for f in told)
    st.caption(
        "Told from what each uses alone and from the pairs measured. "
        f"{plural(together, 'pair')} may share, of {plural(open_, 'pair')} it cannot be told; "
        "`trimtab analyze contention --all` lists them."
    )
    if not apart:
        page.empty("No two workloads are known that must not share a card.")
    page.list_findings(apart, names, "trimtab analyze contention")


span, seen = page.start("Contention", "Slices that slow each other on the same card, and how sure that is.")
if seen is not None:
    recorded = loaders.claims(span)
    cards = card_names(loaders.facts(seen.window))
    _pairs(seen, recorded, cards)
    _apart(recorded, cards)
