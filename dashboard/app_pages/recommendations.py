"""recommendations."""
