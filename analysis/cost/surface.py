"""Times over two axes that never fall: what lies between the measured points, and beyond them.

Linear between points; beyond the last one the last slope goes on, before the first the first value
holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ...errors import SwitchSDError


@dataclass(frozen=True)
class Surface:
    """Milliseconds over two axes.

    Attributes:
        rows: points of the first axis, rising.
        columns: points of the second axis, rising.
        ms: [row, column].

    Raises:
        SwitchSDError: an axis that does not rise, a shape that does not fit, times that are
            negative, not finite or fall along an axis.
    """

    rows: Float[np.ndarray, " row"]
    columns: Float[np.ndarray, " column"]
    ms: Float[np.ndarray, "row column"]

    def __post_init__(self) -> None:
        for axis in (self.rows, self.columns):
            if axis.ndim != 1 or not len(axis) or not np.isfinite(axis).all():
                raise SwitchSDError("an axis is a list of at least one number")
            if (np.diff(axis) <= 0).any() or axis[0] < 0:
                raise SwitchSDError(f"the points {axis.tolist()} have to rise from 0 or more")
        if self.ms.shape != (len(self.rows), len(self.columns)):
            raise SwitchSDError(
                f"{len(self.rows)} × {len(self.columns)} points and {self.ms.shape} times"
            )
        if not np.isfinite(self.ms).all() or (self.ms < 0).any():
            raise SwitchSDError("a time is negative or no number")
        for number, name in enumerate(("first", "second")):
            if (np.diff(self.ms, axis=number) < 0).any():
                raise SwitchSDError(
                    f"times fall along the {name} axis: "
                    "more tokens never cost less; even out the noise"
                )

    def at(self, rows: ArrayLike, columns: ArrayLike) -> Float[np.ndarray, "*any"]:
        """Times at any points; the two broadcast."""
        i, across = _between(self.rows, np.asarray(rows, dtype=np.float64))
        j, along = _between(self.columns, np.asarray(columns, dtype=np.float64))
        i2, j2 = np.minimum(i + 1, len(self.rows) - 1), np.minimum(j + 1, len(self.columns) - 1)
        near = self.ms[i, j] + along * (self.ms[i, j2] - self.ms[i, j])
        far = self.ms[i2, j] + along * (self.ms[i2, j2] - self.ms[i2, j])
        return np.maximum(near + across * (far - near), 0.0)


def rising(ms: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "row column"]:
    """Measured times made to never fall along an axis.

    Midway between the least such surface above them and the greatest below them, so that noise
    lifts it no more than it lowers it.
    """
    above = np.maximum.accumulate(np.maximum.accumulate(ms, axis=0), axis=1)
    back = ms[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(back, axis=0), axis=1)[::-1, ::-1]
    return (above + below) / 2


def _between(points: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point below x and how far x is towards the next, in parts of the way between them."""
    if len(points) == 1:
        return np.zeros(x.shape, dtype=np.int64), np.zeros(x.shape)
    below = np.clip(np.searchsorted(points, x, side="right") - 1, 0, len(points) - 2)
    step = points[below + 1] - points[below]
    return below, np.maximum((x - points[below]) / step, 0.0)
