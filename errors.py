"""The exceptions for bad input: their text says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence


class SwitchSDError(Exception):
    """A mistake in what the lab was given (not a bug in the lab).

    The command line prints the message as one line and exits with code 2; nothing already
    written is lost.
    """


class OneClassError(SwitchSDError):
    """All tokens carry the same label, so the measure asked for does not exist."""

    @classmethod
    def of(cls, labels: Sequence[object]) -> OneClassError:
        """The message for these labels."""
        if len(labels) == 0:
            return cls("no tokens to evaluate; use more prompts or longer completions")
        kind = "copy" if bool(labels[0]) else "non-copy"
        return cls(f"all {len(labels)} tokens are {kind} tokens (one class only); use more prompts")
