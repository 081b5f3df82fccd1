"""`python -m switchsd` is the command line."""

from .apps.cli import main

main()
