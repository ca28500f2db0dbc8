"""The `trimtab` command. `main` is its entry point; each module holds one group of commands."""

from dashboard.cli.root import app, main

__all__ = ["app", "main"]
