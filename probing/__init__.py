"""A model with named streams, the activations it stores, and the probes read from them."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .activations.store import ActivationStore as ActivationStore
    from .activations.store import open_store as open_store
    from .copy_probe import CopyProbe as CopyProbe
    from .corpora.completions import build_corpus as build_corpus
    from .corpora.completions import complete as complete
    from .corpora.token_table import label_table as label_table
    from .lens import Lens as Lens
    from .loading import load as load
    from .loading import wrap as wrap
    from .training.metrics import evaluate as evaluate
    from .training.probing_set import probe_data as probe_data

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "corpora.completions": ["build_corpus", "complete"],
        "copy_probe": ["CopyProbe"],
        "corpora.token_table": ["label_table"],
        "training.metrics": ["evaluate"],
        "training.probing_set": ["probe_data"],
        "lens": ["Lens"],
        "loading": ["load", "wrap"],
        "activations.store": ["ActivationStore", "open_store"],
    },
)
