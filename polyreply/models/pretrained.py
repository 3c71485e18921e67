"""Reading a saved K-decoder model: what does not fit is one clear line that says what was expected."""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from polyreply.errors import ModelFolderError
from polyreply.models.config import SCHEMA_VERSION, PolyReplyConfig
from polyreply.models.generation import without_beam_search
from polyreply.models.loading import leads_nowhere, one_line_errors, quietly, stay_untied

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


def load_checked(load: Callable[..., Any], name: str | Path, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Loads with Transformers' own `from_pretrained` and returns the model and its loading info.

    Safetensors only, no code that comes with a model, and no weight left at random: an error says what was expected.
    """
    hub = {key: options[key] for key in _HUB_OPTIONS if options.get(key) is not None}
    if options.get("config") is None:
        check_config(name, read_config(name, hub))
    _check_weights_file(name, hub)
    options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with _one_line_errors(name), quietly():
        model, info = load(str(name), *arguments, **options)
    _check_weights(name, model.config, info)
    _own_memory(model)
    stay_untied(model.backbone)
    with _one_line_errors(name):
        _load_generation_config(model, name, hub)
    return model, info


def read_config(name: str | Path, hub: dict[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a folder or a Hugging Face model, as it is."""
    text = str(name)
    if Path(name).is_file():
        raise ModelFolderError(f"expected a K-decoder model folder, found the file {text}; name its folder")
    if leads_nowhere(name):
        raise ModelFolderError(f"no model at {text}: expected a K-decoder model folder with a config.json")
    if Path(name).is_dir() and not Path(name, (hub or {}).get("subfolder", ""), "config.json").is_file():
        raise ModelFolderError(f"expected a K-decoder model folder with a config.json, found none in {text}")
    with _one_line_errors(name), quietly():
        config, _ = PretrainedConfig.get_config_dict(text, **(hub or {}))
    if not config:  # Transformers' answer to a repository without one
        raise ModelFolderError(f"expected a K-decoder model with a config.json, found none in {text}")
    return dict(config)


def check_config(name: str | Path, config: dict[str, Any]) -> None:
    """Raises when a config.json is that of another kind of model, or of a later polyreply."""
    kind = config.get("model_type")
    if kind != PolyReplyConfig.model_type:
        raise ModelFolderError(
            f"expected a K-decoder model (model_type {PolyReplyConfig.model_type}) in {name}, found a plain "
            f"{kind or 'configuration without a model_type'}{' model' if kind else ''}; build a K-decoder model on "
            "it with PolyReplyModel.from_backbone"
        )
    version = config.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ModelFolderError(
            f"{name} has schema version {version}, and this polyreply reads up to {SCHEMA_VERSION}; upgrade polyreply"
        )


def _check_weights_file(name: str | Path, hub: dict[str, Any]) -> None:
    folder = Path(name, hub.get("subfolder", ""))
    if folder.is_dir() and not any((folder / file).is_file() for file in _WEIGHTS):
        found = sorted(path.name for pattern in ("*.bin", "*.pt", "*.safetensors") for path in folder.glob(pattern))
        raise ModelFolderError(
            f"expected the weights of a K-decoder model as {_WEIGHTS[0]} in {name}, found "
            f"{', '.join(found) or 'no weights'}; copy the folder again, whole"
        )


def _check_weights(name: str | Path, config: PolyReplyConfig, info: dict[str, Any]) -> None:
    """Raises unless the file holds exactly the weights that the configuration asks for."""
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    other_shape = {key: tuple(found) for key, found, _ in info["mismatched_keys"]}
    if not (missing or unexpected or other_shape):
        return
    found = _num_decoders(config, missing, unexpected, other_shape)
    if found is not None and found != config.num_decoders:
        raise ModelFolderError(
            f"expected the weights of {config.num_decoders} decoders in {name}, as its config.json says "
            f"(num_decoders), found those of {found}; take config.json and weights from the same model"
        )
    kinds = (("missing", missing), ("of another shape", set(other_shape)), ("unknown", unexpected))
    problems = [f"{len(keys)} {what} (such as {min(keys)})" for what, keys in kinds if keys]
    raise ModelFolderError(
        f"expected {name} to hold the weights of its config.json ({config.architecture}, {config.num_decoders} "
        f"decoders, {config.backbone['model_type']}), found tensors {', '.join(problems)}; "
        "take config.json and weights from the same model"
    )


def _num_decoders(
    config: PolyReplyConfig, missing: set[str], unexpected: set[str], other_shape: dict[str, tuple[int, ...]]
) -> int | None:
    """The K of the weights, where they are those of a K-decoder model of another K."""
    stacks = {shape[0] for key, shape in other_shape.items() if key.startswith("adapters.")}
    if len(stacks) == 1:
        return stacks.pop()
    if config.architecture != "multi-decoder":
        return None
    more, fewer = (_extra_decoders(keys) for keys in (unexpected, missing))
    if more and not missing:
        return max(more) + 2  # one decoder is the backbone's, and they are numbered from 0
    return min(fewer) + 1 if fewer and not unexpected else None


def _extra_decoders(keys: Iterable[str]) -> set[int]:
    return {int(found[1]) for key in keys if (found := re.match(r"extra_decoders\.(\d+)\.", key))}


def _own_memory(model: Any) -> None:
    """Moves the weights from the mapped file into memory of their own.

    There they are aligned as those of a fresh model are, so that a saved and loaded model computes the same, to the
    last bit; and nothing breaks when the file is replaced while the model is in use.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _load_generation_config(model: Any, name: str | Path, hub: dict[str, Any]) -> None:
    """A folder without one is given the backbone's defaults, as everywhere in Transformers."""
    folder = Path(name, hub.get("subfolder", ""))
    if folder.is_dir() and not (folder / "generation_config.json").is_file():
        return
    try:
        model.generation_config = without_beam_search(GenerationConfig.from_pretrained(str(name), **hub))
    except OSError:
        if folder.is_dir():
            raise


def _one_line_errors(name: str | Path) -> AbstractContextManager[None]:
    expected = (
        "a folder with a config.json and a complete model.safetensors, or a Hugging Face model that is downloaded "
        "or can be"
    )
    return one_line_errors(ModelFolderError, f"a K-decoder model from {str(name)!r}", expected)
