"""Rows of a Hugging Face hub dataset, by name; the only place that reaches for the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import SwitchSDError


@dataclass(frozen=True)
class HubDataset:
    """A dataset as written on the command line: `org/name:config:split:column`."""

    name: str
    config: str | None
    split: str
    column: str

    @classmethod
    def parse(cls, text: str, *, column: str | None = None) -> HubDataset:
        """Read `org/name:config:split:column`; the config may be empty (`org/name::train:text`).

        With a default `column`, the last part may be left out.

        Raises:
            SwitchSDError: another number of parts, or an empty one.
        """
        parts = text.split(":")
        if column is not None and len(parts) == 3:
            parts.append(column)
        if len(parts) != 4 or "/" not in parts[0] or not (parts[2] and parts[3]):
            raise SwitchSDError(
                f"{text!r} is not a hub dataset; write org/name:config:split:column"
            )
        return cls(parts[0], parts[1] or None, parts[2], parts[3])


def looks_like_hub(text: str) -> bool:
    """Whether `text` has the form of a hub dataset rather than of a path."""
    name, colon, _ = text.partition(":")
    return bool(colon) and name.count("/") == 1 and not name.startswith((".", "/", "~"))


def hub_column(dataset: HubDataset) -> Iterator[Any]:
    """The values of one column, streamed in the dataset's order.

    Raises:
        SwitchSDError: `datasets` is not installed, the hub cannot be reached, or the dataset,
            config, split or column does not exist.
    """
    try:
        import httpx
        from datasets import load_dataset
    except ImportError as error:
        raise SwitchSDError(
            f"reading {dataset.name} from the hub needs `pip install datasets`"
        ) from error
    try:
        for row in load_dataset(dataset.name, dataset.config, split=dataset.split, streaming=True):
            if dataset.column not in row:
                raise SwitchSDError(
                    f"{dataset.name} has no column {dataset.column!r}; it has {', '.join(row)}"
                )
            yield row[dataset.column]
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SwitchSDError(
            f"cannot read {dataset.name} from the hub ({reason}); check the name, config and split "
            "and the network, or give a local file"
        ) from error
