"""Exporters of the simulated cluster: each writes the text that the real one would, quirks included.

Label texts are made once and kept until the things that they name change; a scrape joins them with values.
"""

from __future__ import annotations
