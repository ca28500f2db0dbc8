"""Fuzzing of all parsers: bodies of the right structure, spoilt here and there, that carry their right values."""
