"""Loading a saved K-decoder model: every file and every weight is checked, and each error is one line."""

import copy
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from polyreply.errors import ModelFolderError, PolyReplyError
from polyreply.files import check_schema_version
from polyreply.models.backbones import is_missing_folder, keep_untied, one_line_errors, quietly
from polyreply.models.config import SCHEMA_VERSION, PolyReplyConfig

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
_BEAM_SEARCH = (
    "num_beams",
    "length_penalty",
    "early_stopping",
    "num_return_sequences",
    "num_beam_groups",
    "diversity_penalty",
)


def load_checked(
    kind: type[Any], load: Callable[..., Any], name: str | Path, *arguments: Any, **options: Any
) -> tuple[Any, Any]:
    """Load with Transformers' own `from_pretrained`; returns the model and its loading info.

    Safetensors only, no code that comes with a model, and no weight left at random.
    """
    hub = {key: options[key] for key in _HUB_OPTIONS if options.get(key) is not None}
    backbone = options.pop("backbone", None)
    reference: dict[str, str] = {}
    if options.get("config") is None:
        found = read_config(name, hub)
        check_config(name, found)
        reference = found.get("backbone_reference") or {}
    if backbone is not None and not reference:
        raise ModelFolderError(f"backbone: expected a model without its backbone, found one that has it in {name}")
    _check_weights_file(name, hub)
    if reference:
        from polyreply.models.reference import load_with_reference

        config, dtype = PolyReplyConfig.from_dict(found), options.get("dtype")
        model, info = load_with_reference(kind, name, config, backbone=backbone, dtype=dtype, hub=hub)
    else:
        options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
        with _one_line_errors(name), quietly():
            model, info = load(str(name), *arguments, **options)
    _check_weights(name, model.config, info)
    _own_memory(model)
    keep_untied(model.backbone)
    with _one_line_errors(name):
        _load_generation_config(model, name, hub)
    return model, info


def read_config(name: str | Path, hub: dict[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a folder or a Hugging Face model, as it is."""
    text = str(name)
    if Path(name).is_file():
        raise ModelFolderError(f"expected a K-decoder model folder, found the file {text}; name its folder")
    if is_missing_folder(name):
        raise ModelFolderError(f"no model at {text}: expected a K-decoder model folder with a config.json")
    if Path(name).is_dir() and not Path(name, (hub or {}).get("subfolder", ""), "config.json").is_file():
        raise ModelFolderError(f"expected a K-decoder model folder with a config.json, found none in {text}")
    with _one_line_errors(name), quietly():
        config, _ = PretrainedConfig.get_config_dict(text, **(hub or {}))
    if not config:  # Transformers' answer to a repository without one
        raise ModelFolderError(f"expected a K-decoder model with a config.json, found none in {text}")
    return dict(config)


def check_config(name: str | Path, config: dict[str, Any]) -> None:
    """Raise if a config.json belongs to another kind of model, or to a later polyreply."""
    kind = config.get("model_type")
    if kind != PolyReplyConfig.model_type:
        raise ModelFolderError(
            f"expected a K-decoder model (model_type {PolyReplyConfig.model_type}) in {name}, found a plain "
            f"{kind or 'configuration without a model_type'}{' model' if kind else ''}; build a K-decoder model on "
            "it with PolyReplyModel.from_backbone"
        )
    try:
        check_schema_version(name, config.get("schema_version"), SCHEMA_VERSION)
    except PolyReplyError as error:
        raise ModelFolderError(str(error)) from None


def _check_weights_file(name: str | Path, hub: dict[str, Any]) -> None:
    folder = Path(name, hub.get("subfolder", ""))
    if folder.is_dir() and not any((folder / file).is_file() for file in _WEIGHTS):
        found = sorted(path.name for pattern in ("*.bin", "*.pt", "*.safetensors") for path in folder.glob(pattern))
        raise ModelFolderError(
            f"expected the weights of a K-decoder model as {_WEIGHTS[0]} in {name}, found "
            f"{', '.join(found) or 'no weights'}; copy the folder again, whole"
        )


def _check_weights(name: str | Path, config: PolyReplyConfig, info: dict[str, Any]) -> None:
    """Raise unless the file holds exactly the weights that the configuration asks for."""
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    other_shape = {key: tuple(found) for key, found, _ in info["mismatched_keys"]}
    if not (missing or unexpected or other_shape):
        return
    num_decoders = _num_decoders(config, missing, unexpected, other_shape)
    if num_decoders is not None and num_decoders != config.num_decoders:
        raise ModelFolderError(
            f"expected the weights of {config.num_decoders} decoders in {name}, as its config.json says "
            f"(num_decoders), found those of {num_decoders}; take config.json and weights from the same model"
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
    """The number of decoders that the weights belong to, if it can be told from what does not fit."""
    extra = config.num_adapters - config.num_decoders
    stacks = {shape[0] - extra for key, shape in other_shape.items() if key.startswith("adapters.")}
    if len(stacks) == 1:
        return stacks.pop()
    if config.architecture != "multi-decoder":
        return None
    more, fewer = (
        {int(match[1]) for key in keys if (match := re.match(r"extra_decoders\.(\d+)\.", key))}
        for keys in (unexpected, missing)
    )
    if more and not missing:
        return max(more) + 2  # one decoder is the backbone's, and they are numbered from 0
    return min(fewer) + 1 if fewer and not unexpected else None


def _own_memory(model: Any) -> None:
    """Copy the weights from the mapped file into ordinary memory.

    There they are aligned as in a freshly built model, so that a saved and loaded model computes the same to the last
    bit; and nothing breaks if the file is replaced while the model is in use.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _load_generation_config(model: Any, name: str | Path, hub: dict[str, Any]) -> None:
    """Load the folder's generation config; without one the backbone's defaults stay, as usual in Transformers."""
    folder = Path(name, hub.get("subfolder", ""))
    if folder.is_dir() and not (folder / "generation_config.json").is_file():
        return
    try:
        model.generation_config = without_beam_search(GenerationConfig.from_pretrained(str(name), **hub))
    except OSError:
        if folder.is_dir():
            raise


def without_beam_search(config: GenerationConfig) -> GenerationConfig:
    """A generation config without the settings of beam search, which K decoders do not use.

    Checkpoints such as BART's come with them, and here they would be refused as settings without effect. What a
    checkpoint says about lengths and tokens holds for any way to decode, and stays.
    """
    names = [name for name in _BEAM_SEARCH if name in config.to_diff_dict()]
    if not names:
        return config
    config, default = copy.deepcopy(config), GenerationConfig()
    for name in names:
        setattr(config, name, getattr(default, name, None))
    return config


def _one_line_errors(name: str | Path) -> AbstractContextManager[None]:
    expected = (
        "a folder with a config.json and a complete model.safetensors, or a Hugging Face model that is downloaded "
        "or can be"
    )
    return one_line_errors(ModelFolderError, f"a K-decoder model from {str(name)!r}", expected)
