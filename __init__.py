"""SwitchSD Lab: when does a language model copy from its context, and what does knowing it save?"""

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .decoding.engine import generate as generate
    from .decoding.policies import Options as Options
    from .decoding.policies import build_policy as build_policy
    from .decoding.step.sampling import Sampling as Sampling
    from .errors import SwitchSDError as SwitchSDError
    from .probing.copy_probe import CopyProbe as CopyProbe
    from .probing.lens import Lens as Lens
    from .probing.loading import load as load
    from .probing.loading import wrap as wrap

__version__ = "0.1.0"
__getattr__, __all__ = lazy_names(
    __name__,
    {
        "decoding.engine": ["generate"],
        "decoding.policies": ["Options", "build_policy"],
        "decoding.step.sampling": ["Sampling"],
        "errors": ["SwitchSDError"],
        "probing.copy_probe": ["CopyProbe"],
        "probing.lens": ["Lens"],
        "probing.loading": ["load", "wrap"],
    },
)
