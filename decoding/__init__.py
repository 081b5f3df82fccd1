"""Draft trees, exact verification, gates and drafters: the one decode loop."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .engine import Decoding as Decoding
    from .engine import Generation as Generation
    from .engine import Token as Token
    from .engine import generate as generate
    from .engine import generate_batch as generate_batch
    from .engine import stream as stream
    from .policies import POLICIES as POLICIES
    from .policies import Options as Options
    from .policies import Policy as Policy
    from .policies import build_policy as build_policy
    from .sampling import Sampling as Sampling
    from .trace import Step as Step
    from .trace import Trace as Trace
    from .tree import DraftTree as DraftTree

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "engine": ["Decoding", "Generation", "Token", "generate", "generate_batch", "stream"],
        "policies": ["POLICIES", "Options", "Policy", "build_policy"],
        "sampling": ["Sampling"],
        "trace": ["Step", "Trace"],
        "tree": ["DraftTree"],
    },
)
