"""What cards cost, by the `[[price]]` tables."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collector.errors import ConfigurationError
from tuner.settings import PriceSettings


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by glob on the model; the first match counts. All are in one currency."""

    tables: tuple[PriceSettings, ...]

    @property
    def currency(self) -> str:
        """ISO 4217 code; empty where no price is configured."""
        return self.tables[0].currency if self.tables else ""

    def of_fleet(self, models: Iterable[str]) -> float:
        """Return the price of these cards for one hour; NaN where one of them has none."""
        found = [self.of_card(model) for model in models]
        return sum(found) if found else math.nan

    def of_card(self, model: str) -> float:
        """Return the price of a card for one hour; NaN: none is configured."""
        for table in self.tables:
            if fnmatch.fnmatchcase(model.lower(), table.model.lower()):
                return table.per_gpu_hour
        return math.nan


def read_prices(tables: Sequence[PriceSettings]) -> Prices:
    """Check the tables.

    Raises:
        ConfigurationError: they are in several currencies, which cannot be added up.
    """
    currencies = sorted({table.currency for table in tables})
    if len(currencies) > 1:
        raise ConfigurationError(f"[[price]]: expected one currency, got {', '.join(currencies)}; convert them to one")
    return Prices(tuple(tables))
