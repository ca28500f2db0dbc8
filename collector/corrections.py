"""Numbers that others give the lie to: struck out, and counted as rejects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.cycle import Numbers
from collector.gpu_models import gpu_model, profile_bytes
from collector.join import SliceRow
from collector.layout import FIELD_INDEX, NOWHERE, Registry
from collector.report import Report
from collector.rows import CardTable

_PROFILING = np.array(
    [
        FIELD_INDEX[name]
        for name in (
            "engine_active_ratio",
            "sm_active_ratio",
            "sm_occupancy_ratio",
            "tensor_active_ratio",
            "fp64_active_ratio",
            "fp32_active_ratio",
            "fp16_active_ratio",
            "dram_active_ratio",
        )
    ]
)
_BUSY, _MEMORY_BUSY = FIELD_INDEX["busy_ratio"], FIELD_INDEX["memory_busy_ratio"]
_ENGINE, _POWER, _IDLE = FIELD_INDEX["engine_active_ratio"], FIELD_INDEX["power_watts"], FIELD_INDEX["idle_seconds"]
_THROTTLES = np.array([FIELD_INDEX[f"throttle_{name}_ratio"] for name in ("power", "thermal", "brake", "other")])
# Profiling counters that read 0 while the card is busier than this (or draws more of its power) are stuck.
_BUSY_CARD = 0.10
_POWER_SHARE = 0.50
# A container whose last kernel ended longer ago than this does nothing, whatever its use says (seconds).
_LONG_IDLE = 300.0
_RECENT_KERNEL = 60.0


def correct_cards(numbers: Numbers, table: CardTable, registry: Registry, report: Report) -> None:
    """Strike out what a card's own figures give the lie to, in `numbers`, and count it.

    Under MIG the card's busy time is unknown. Profiling counters that read 0 on a busy or hot card are stuck.
    """
    matrix, rows, cut = numbers.matrix, table.rows, table.cut
    matrix[:, _THROTTLES] = np.minimum(matrix[:, _THROTTLES], 1.0)
    if not table.cards:
        return
    if cut.any():
        matrix[np.ix_(rows[cut], np.array([_BUSY, _MEMORY_BUSY]))] = np.nan
    silent = np.flatnonzero(matrix[rows, _ENGINE] == 0)
    for n in silent.tolist():
        card = table.cards[n]
        model = gpu_model(card.model) if card.model else None
        hot = model is not None and matrix[card.row, _POWER] > _POWER_SHARE * model.tdp_watts
        if not (matrix[card.row, _BUSY] > _BUSY_CARD or hot):
            continue
        stuck = [card.row]
        stuck += [registry.row(("instance", card.uuid, gi, profile)) for gi, profile in card.instances.items()]
        stuck = [row for row in stuck if row < len(matrix)]
        cells = np.ix_(np.array(stuck), _PROFILING)
        count = int((~np.isnan(matrix[cells])).sum())
        matrix[cells] = np.nan
        report.reject(report.card(card), "engine_active_ratio", "prof_silent_zero", count)


def correct_shares(numbers: Numbers, slices: Sequence[SliceRow], report: Report) -> None:
    """Strike out a vGPU container's use where its last kernel or the card gives it the lie, and count it."""
    matrix = numbers.matrix
    by_card: dict[int, list[SliceRow]] = {}
    for share in slices:
        if share.kind == "vgpu" and NOWHERE < share.base < len(matrix):
            by_card.setdefault(share.card.row, []).append(share)
    for card_row, shares in by_card.items():
        rows = [share.base for share in shares]
        busy, idle = matrix[rows, _BUSY], matrix[rows, _IDLE]
        all_zero = matrix[card_row, _BUSY] > _BUSY_CARD and float(np.nansum(busy)) == 0
        for share, use, since in zip(shares, busy, idle, strict=True):
            reason = ""
            if use > 0 and since > _LONG_IDLE:
                reason, matrix[share.base, _BUSY] = "stuck_while_idle", 0.0
            elif use == 0 and all_zero and since < _RECENT_KERNEL:
                reason, matrix[share.base, _BUSY] = "zero_while_busy", np.nan
            if reason:
                report.reject(report.share(share), "busy_ratio", reason)


def check_profiles(numbers: Numbers, slices: Sequence[SliceRow], report: Report) -> None:
    """Count MIG instances whose memory is not what their profile's name says: the label is wrong."""
    cut = [share for share in slices if share.kind == "mig"]
    if not cut:
        return
    memory = numbers.instance_memory(np.array([share.base for share in cut], dtype=np.int64))
    for share, measured in zip(cut, memory.tolist(), strict=True):
        named = profile_bytes(share.profile)
        # Profiles of one name differ by a tenth from what they hold; another profile differs by far more.
        if named and (measured < 0.75 * named or measured > 1.15 * named):
            report.reject(report.share(share), "profile", "profile_mismatch")
