"""HAMi: the monitor of the node (what containers use) and the scheduler (what they were promised)."""

from __future__ import annotations

from sample_data.cluster.exporters.text import head, shortest
from sample_data.cluster.readings import Readings
from sample_data.cluster.simulation import World

_MONITOR = (
    ("hami_container_device_utilization_ratio", "hami_util", "Container device utilization description"),
    ("hami_container_last_kernel_elapsed_seconds", "hami_last_kernel", "Container device last kernel description"),
    ("hami_vgpu_memory_used_bytes", "hami_memory_used", "vGPU device memory usage in bytes"),
    ("hami_vgpu_memory_limit_bytes", "hami_memory_limit", "vGPU device memory limit in bytes"),
)
_SCHEDULER = (
    ("hami_vgpu_core_allocated_ratio", "hami_cores", "vGPU core allocated from a container"),
    ("hami_vgpu_memory_allocated_bytes", "hami_promised", "vGPU memory allocated from a container"),
)


class HamiExporter:
    """Monitor and scheduler of the nodes that HAMi shares."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._slices = [i for i, s in enumerate(world.spec.slices) if s.kind == "vgpu"]

    def monitor(self, readings: Readings) -> str:
        """Return the body of vGPUmonitor: only containers whose process has touched the card."""
        lines = []
        for name, field, text in _MONITOR:
            lines.append(head(name, "gauge", text))
            values = getattr(readings, field)
            for i in self._slices:
                holder, value = self._world.holders[i], float(values[i])
                if holder is not None and value == value:  # noqa: PLR0124 - NaN test
                    uuid = self._world.spec.cards[self._world.spec.slices[i].card].uuid
                    lines.append(
                        f'{name}{{container="{holder.container}",device_uuid="{uuid}",namespace="{holder.namespace}",'
                        f'pod="{holder.pod}",vdevice_index="0",zone="vGPU"}} {shortest(value)}'
                    )
        return "\n".join([*lines, ""])

    def scheduler(self, readings: Readings) -> str:
        """Return the body of the scheduler: cards' totals and what each container was promised."""
        world, spec = self._world, self._world.spec
        lines = []
        for name, field, text in _SCHEDULER:
            lines.append(head(name, "gauge", text))
            values = getattr(readings, field)
            for i in self._slices:
                holder, card = world.holders[i], spec.cards[spec.slices[i].card]
                if holder is not None:
                    lines.append(
                        f'{name}{{container_index="0",device_uuid="{card.uuid}",namespace="{holder.namespace}",'
                        f'node="{card.node}",pod="{holder.pod}",zone="vGPU"}} {shortest(float(values[i]))}'
                    )
        lines.append(head("hami_gpu_memory_limit_bytes", "gauge", "Device memory limit for a certain GPU"))
        for c, card in enumerate(spec.cards):
            if card.sharing == "vgpu" and world.card_alive[c]:
                lines.append(
                    f'hami_gpu_memory_limit_bytes{{device_index="{card.index}",device_uuid="{card.uuid}",'
                    f'node="{card.node}",zone="vGPU"}} {card.hardware.memory_bytes}'
                )
        return "\n".join([*lines, ""])
