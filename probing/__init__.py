"""A model with named streams, the activations it stores, and the probes read from them."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .completions import build_corpus as build_corpus
    from .completions import complete as complete
    from .copy_probe import CopyProbe as CopyProbe
    from .dataset import label_table as label_table
    from .dataset import probe_data as probe_data
    from .lens import Lens as Lens
    from .loading import load as load
    from .loading import wrap as wrap
    from .store import ActivationStore as ActivationStore
    from .store import open_store as open_store
    from .sweep import evaluate as evaluate

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "completions": ["build_corpus", "complete"],
        "copy_probe": ["CopyProbe"],
        "dataset": ["label_table", "probe_data"],
        "lens": ["Lens"],
        "loading": ["load", "wrap"],
        "store": ["ActivationStore", "open_store"],
        "sweep": ["evaluate"],
    },
)
