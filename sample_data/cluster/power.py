"""Power, heat and clocks of the cards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sample_data.cluster.spec import ClusterSpec

FloatArray = npt.NDArray[np.float64]

_INLET_CELSIUS = 27.0
_FULL_RISE_CELSIUS = 47.0  # at TDP, in the steady state
_HOT_RISE_CELSIUS = 16.0  # of a failing inlet
_HEAT_MEMORY = 0.75  # of the last minute's temperature that is left after one minute
_POWER_EXPONENT = 1 / 2.4  # clock that a power cap leaves: power goes with about the 2.4th power of the clock


class Thermals:
    """Power, temperature and clock factor of every card, moved minute by minute."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.idle = np.array([c.hardware.idle_watts for c in spec.cards])
        self.tdp = np.array([c.hardware.tdp_watts for c in spec.cards])
        self.temperature = _INLET_CELSIUS + _FULL_RISE_CELSIUS * self.idle / self.tdp
        self.power = self.idle.copy()

    def move(self, activity: FloatArray, inlet_clock: FloatArray, alive: FloatArray) -> FloatArray:
        """Set power and temperature for a minute; return the clock factor that the power cap leaves (0..1].

        Args:
            activity: per card: sum over slices of share in use x power intensity.
            inlet_clock: factor that a failing inlet forces on the clock.
            alive: 1, or 0 for a card that fell off the bus.
        """
        wanted = self.idle + (self.tdp - self.idle) * activity * inlet_clock
        self.power = np.minimum(wanted, self.tdp) * alive
        target = _INLET_CELSIUS + _FULL_RISE_CELSIUS * self.power / self.tdp + _HOT_RISE_CELSIUS * (inlet_clock < 1)
        self.temperature = _HEAT_MEMORY * self.temperature + (1 - _HEAT_MEMORY) * target
        return power_clock(activity)


def power_clock(activity: FloatArray) -> FloatArray:
    """Return the clock factor under a cap at TDP: 1 up to full activity, then the root that brings power back."""
    return np.asarray(np.maximum(activity, 1.0) ** -_POWER_EXPONENT)
