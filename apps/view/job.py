"""A model that decodes while the page watches: loaded once, a thread at a time, never a crash.

No Streamlit here. The page asks a `Job` how far it is; whatever goes wrong is a sentence in it.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import SwitchSDError

if TYPE_CHECKING:
    from ...decoding.engine import Decoding
    from ...probing.lens import Lens

LONGEST_PROMPT = 400_000
"""Characters; a longer text exceeds any context this lab is for, and tokenising it takes long."""

_WEIGHTS = (".safetensors", ".bin")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_loaded: dict[tuple[str, str, str], Any] = {}
_loading = threading.Lock()
_stepping = threading.Lock()  # a lens serves one forward at a time


@dataclass(frozen=True)
class Request:
    """What to decode, and with what.

    Attributes:
        model, device, dtype: as the command line takes them.
        policy: a name from the registry.
        prompt: what the user asks.
        max_new_tokens: budget.
        tau: threshold; None takes the probe's.
        raw: the text as it stands, no chat format.
    """

    model: str
    device: str
    dtype: str
    policy: str
    prompt: str
    max_new_tokens: int = 128
    tau: float | None = None
    raw: bool = False


@dataclass
class Job:
    """One decoding in the background.

    Attributes:
        request: what it was asked.
        state: `loading`, `decoding`, `done`, `stopped` or `failed`.
        said: what it is doing, or what went wrong.
        decoding: once it has begun.
    """

    request: Request
    state: str = "loading"
    said: str = ""
    decoding: Decoding | None = None
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    @classmethod
    def start(cls, request: Request, load: Callable[[str, str, str], Lens] | None = None) -> Job:
        """Begin in a thread of its own; returns at once.

        Args:
            request: what to decode.
            load: gives the lens; the process's one copy of it if None.
        """
        job = cls(request)
        thread = threading.Thread(target=job._run, args=(load or lens_once,), daemon=True)
        _running[thread] = job
        thread.start()
        return job

    @property
    def running(self) -> bool:
        """Whether there is more to come."""
        return self.state in ("loading", "decoding")

    def stop(self) -> None:
        """End after the step that is being made."""
        self._stop.set()

    def _run(self, load: Callable[[str, str, str], Lens]) -> None:
        request = self.request
        try:
            check_prompt(request.prompt)
            self.said = f"Loading {request.model} (the first time a model is converted: 20 s) …"
            with _loading:
                lens = load(request.model, request.device, request.dtype)
            self.said = "Reading the prompt …"
            self.decoding = _decoding(lens, request)
            self.state = "decoding"
            steps = self.decoding.steps()
            while not self._stop.is_set():
                with _stepping:
                    if next(steps, None) is None:
                        break
            self.state = "stopped" if self._stop.is_set() else "done"
        except SwitchSDError as error:
            self.state, self.said = "failed", str(error)
        except MemoryError:
            self.state, self.said = "failed", _too_large(request.model, request.dtype)
        except Exception as error:  # the thread's only way to say it; the app stays up
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            full = "out of memory" in reason.lower() or "can't allocate" in reason.lower()
            self.state = "failed"
            self.said = _too_large(request.model, request.dtype) if full else reason


_running: weakref.WeakKeyDictionary[threading.Thread, Job] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """A thread in the middle of a forward would abort the process that ends under it."""
    for thread, job in list(_running.items()):
        job.stop()
        thread.join(timeout=5)


def check_prompt(text: str) -> None:
    """Raise unless a prompt can be decoded from.

    Raises:
        SwitchSDError: an empty one, or one too long to be tokenised.
    """
    if not text.strip():
        raise SwitchSDError("the prompt is empty: give some text")
    if len(text) > LONGEST_PROMPT:
        raise SwitchSDError(
            f"the prompt has {len(text):,} characters; at most {LONGEST_PROMPT:,} are taken: "
            "shorten it"
        )


def lens_once(model: str, device: str, dtype: str) -> Lens:
    """The model, loaded once; another one takes its place.

    Raises:
        SwitchSDError: one that does not fit into memory, or cannot be loaded.
    """
    key = (model, device, dtype)
    if key not in _loaded:
        from ..commands.options import load_lens

        _loaded.clear()
        check_fits(model, dtype, available_bytes())
        _loaded[key] = load_lens(model, device, dtype)
    return _loaded[key]


def is_loaded(model: str, device: str, dtype: str) -> bool:
    """Whether the model is in memory."""
    return (model, device, dtype) in _loaded


def available_bytes() -> int | None:
    """Memory that can be had now; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_fits(model: str, dtype: str, available: int | None) -> None:
    """Raise if a local model's weights exceed the memory: the system would end the viewer.

    Args:
        model: a folder; any other name passes.
        dtype: they are loaded in.
        available: bytes; None: not known.

    Raises:
        SwitchSDError: weights larger than what is available.
    """
    folder = Path(model)
    if available is None or not folder.is_dir():
        return
    stored = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in _WEIGHTS)
    needed = stored * _BYTES.get(dtype, 4) / _BYTES.get(_stored_dtype(folder), 4)
    if needed > available:
        raise SwitchSDError(
            f"{_too_large(model, dtype)} (its weights take {needed / 2**30:,.1f} GiB, "
            f"{available / 2**30:,.1f} GiB are free)"
        )


def _stored_dtype(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config.get("dtype") or config.get("torch_dtype") or "float32")
    except (OSError, ValueError, AttributeError):
        return "float32"


def _too_large(model: str, dtype: str) -> str:
    other = "bfloat16 halves it, or " if dtype == "float32" else ""
    return f"{model} does not fit into memory in {dtype}: {other}take a smaller model"


def _decoding(lens: Lens, request: Request) -> Decoding:
    from ...data.chat import chat_ids
    from ...decoding.drafts import find_drafter
    from ...decoding.engine import Decoding
    from ...decoding.policies import Options, build_policy, recipe_of
    from ...probing.shipped import find_probe

    options = Options(
        tau=request.tau,
        probe=find_probe(lens, None, required="probe" in recipe_of(request.policy).reads),
        neural=find_drafter(request.policy, lens, None),
    )
    ids = request.prompt if request.raw else chat_ids(lens.tokenizer, [request.prompt])
    policy = build_policy(request.policy, options)
    return Decoding(lens, ids, policy, max_new_tokens=request.max_new_tokens)
