"""Draft trees, exact verification, gates and drafters: the one decode loop."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .drafters.copy import Copier as Copier
    from .drafters.copy import Lookup as Lookup
    from .drafters.drafter import Drafter as Drafter
    from .engine import Decoding as Decoding
    from .engine import Generation as Generation
    from .engine import Token as Token
    from .engine import generate as generate
    from .engine import generate_batch as generate_batch
    from .engine import stream as stream
    from .gates.gate import CopyGate as CopyGate
    from .gates.gate import Gate as Gate
    from .gates.gate import Memoryless as Memoryless
    from .gates.gate import NeuralGate as NeuralGate
    from .gates.gate import Observation as Observation
    from .policies import POLICIES as POLICIES
    from .policies import Options as Options
    from .policies import Policy as Policy
    from .policies import build_policy as build_policy
    from .policies import register as register
    from .step.log import Step as Step
    from .step.log import StepLog as StepLog
    from .step.log import Trace as Trace
    from .step.sampling import Sampling as Sampling
    from .step.tree import DraftTree as DraftTree

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "drafters.copy": ["Copier", "Lookup"],
        "drafters.drafter": ["Drafter"],
        "engine": ["Decoding", "Generation", "Token", "generate", "generate_batch", "stream"],
        "gates.gate": ["CopyGate", "Gate", "Memoryless", "NeuralGate", "Observation"],
        "policies": ["POLICIES", "Options", "Policy", "build_policy", "register"],
        "step.log": ["Step", "StepLog", "Trace"],
        "step.sampling": ["Sampling"],
        "step.tree": ["DraftTree"],
    },
)
