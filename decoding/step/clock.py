"""The one clock of what runs on a device: seconds, read when the device has done its work."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds on a clock that only rises, after everything asked of the device so far is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
