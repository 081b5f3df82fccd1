"""SwitchSD Lab: when does a language model copy from its context, and what does knowing it save?"""

from .errors import SwitchSDError

__version__ = "0.1.0"

__all__ = ["SwitchSDError", "__version__"]
