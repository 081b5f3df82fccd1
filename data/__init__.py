"""Text in, token ids and copy labels out: the ground every other room stands on."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .benchmarks import load_benchmark as load_benchmark
    from .chat import chat_ids as chat_ids
    from .chat import special_ids as special_ids
    from .context_index import ContextIndex as ContextIndex
    from .context_index import copy_yield as copy_yield
    from .labels import CopyLabels as CopyLabels
    from .labels import copy_labels as copy_labels
    from .labels import loop_start as loop_start

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "benchmarks": ["load_benchmark"],
        "chat": ["chat_ids", "special_ids"],
        "context_index": ["ContextIndex", "copy_yield"],
        "labels": ["CopyLabels", "copy_labels", "loop_start"],
    },
)
