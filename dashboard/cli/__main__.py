"""`python -m dashboard.cli` is `trimtab`."""

from dashboard.cli.root import main

main()
