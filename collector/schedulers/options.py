"""A source's `options`, as its kind understands them."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from collector.errors import ConfigurationError
from collector.settings import Section, SourceSettings

Options = TypeVar("Options", bound=Section)


def read_options(model: type[Options], settings: SourceSettings) -> Options:
    """Return a source's `options` as its kind understands them.

    Raises:
        ConfigurationError: an option that the kind does not know, or of another type.
    """
    try:
        return model.model_validate(settings.options)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(field.alias or name for name, field in model.model_fields.items())
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f'source "{settings.kind}": expected options among {known}; `options.{place}`: {first["msg"]}'
        ) from error
