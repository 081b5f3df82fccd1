"""The one exception for bad input: its text says what is wrong and what to do about it."""

from __future__ import annotations


class SwitchSDError(Exception):
    """A mistake in what the lab was given (not a bug in the lab).

    The command line prints the message as one line and exits with code 2; nothing already
    written is lost.
    """
