"""A K-decoder model as a public backbone and one small file.

`save_pretrained(folder, backbone="reference")` writes the decoders' own weights and, instead of the backbone's, its
name, its revision and a digest of its weights. The tokenizer is left out too where it is the backbone's own. Loading
reads the backbone from where it is installed or downloaded, and refuses one with other weights or another tokenizer:
adapters on another backbone would reply, but not as they were trained to.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from polyreply.data.tokenizer import fingerprint
from polyreply.errors import BackboneError, ModelFolderError, PolyReplyError
from polyreply.models.backbones import backbone_tokenizer, load_backbone, one_line_errors
from polyreply.models.config import PolyReplyConfig, portable_name

if TYPE_CHECKING:
    from polyreply.models.model import PolyReplyModel

_BACKBONE = "backbone."
"""What the names of the backbone's weights begin with in a K-decoder model."""


def digest(backbone: torch.nn.Module, sharded: Mapping[str, torch.Tensor] | None = None) -> str:
    """A SHA-256 of names and weights, as float32; `sharded` has those of which the backbone holds a share, whole."""
    total, whole = hashlib.sha256(), sharded or {}
    for name, own in sorted(backbone.named_parameters()):
        parameter = whole.get(f"{_BACKBONE}{name}", own)
        total.update(f"{name}{tuple(parameter.shape)}".encode())
        weights: Any = parameter.detach().to("cpu", torch.float32).contiguous().numpy()
        total.update(weights)
    return total.hexdigest()


def reference_to(model: "PolyReplyModel", tokenizer: Any = None) -> dict[str, str]:
    """Name, revision and digest of a model's backbone, and the fingerprint of its tokenizer if that is the one given.

    Raises if the backbone alone would not be the same again.
    """
    source, config = model.backbone_source, model.config
    problem = ""
    if config.architecture != "multi-adapter":
        problem = f"{config.architecture}, which has no adapters"
    elif config.shared_weights_changed:
        problem = "shared weights that training changed"
    elif not source:
        problem = "a backbone that has no name to load it by"
    if problem:
        raise PolyReplyError(
            f"expected adapters on an unchanged backbone that can be loaded by its name, found {problem}; save the "
            'whole model, with backbone="whole"'
        )
    name = str(Path(source).resolve()) if Path(source).exists() else source
    revision = str(getattr(model.backbone.config, "_commit_hash", None) or "")
    revision = revision or config.backbone_reference.get("revision", "")
    reference = {"name": name, "revision": revision, "digest": _stored_digest(model, name, revision)}
    own = None if tokenizer is None else backbone_tokenizer(name, revision=revision or None)
    if own is not None and fingerprint(own) == fingerprint(tokenizer):
        reference["tokenizer"] = fingerprint(own)
    return reference


def referenced_tokenizer(model: "PolyReplyModel") -> Any:
    """The tokenizer of a model that was saved without it, from its backbone; raises if that has another one now."""
    reference, source = model.config.backbone_reference, model.backbone_source
    revision = reference["revision"] or None if source == reference["name"] else None
    tokenizer = backbone_tokenizer(source, revision=revision)
    if tokenizer is None or fingerprint(tokenizer) != reference["tokenizer"]:
        raise ModelFolderError(
            f"expected in {source} the tokenizer and chat template that this model was trained with, found "
            f"{'none' if tokenizer is None else 'others'}; use the version it was trained on"
        )
    return tokenizer


def _stored_digest(model: "PolyReplyModel", name: str, revision: str) -> str:
    """The digest of the weights as they are stored, also where the model holds them rounded to 16 bits."""
    if model.backbone.dtype in (torch.float32, torch.float64):
        return digest(model.backbone, model.sharded_weights())
    if model.config.backbone_reference:
        return str(model.config.backbone_reference["digest"])
    return digest(load_backbone(name, dtype="float32", revision=revision or None)[0])


def check_reference(model: "PolyReplyModel") -> None:
    """Raise unless a model can refer to its backbone: its name must load the same weights again."""
    reference = reference_to(model)
    try:
        _load_checked(reference["name"], reference["revision"] or None, reference["digest"], "this model")
    except BackboneError as error:
        raise PolyReplyError(
            f"expected a backbone that can be loaded by its name, found: {error}; save the whole model, with save=whole"
        ) from error


def _load_checked(source: str, revision: str | None, expected: str, whose: str) -> Any:
    """Load a backbone; raise if its weights are not those of a digest."""
    stock, _ = load_backbone(source, dtype="float32", revision=revision)
    if digest(stock) != expected:
        raise ModelFolderError(
            f"expected in {source} the backbone of {whose} with the weights it was trained on (digest "
            f"{expected[:12]}), but the weights there differ; use the version it was trained on"
        )
    return stock


def own_weights(model: "PolyReplyModel") -> dict[str, Any]:
    """The weights that a file with a reference holds."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_BACKBONE)}


def load_with_reference(
    kind: type["PolyReplyModel"],
    name: str | Path,
    config: PolyReplyConfig,
    *,
    backbone: str | Path | None = None,
    dtype: Any = None,
    hub: dict[str, Any],
) -> tuple["PolyReplyModel", dict[str, Any]]:
    """Load the backbone that a model refers to, or the given one, and put the model's own weights around it.

    Returns the model, and the names of the weights that are missing, unknown or of another shape.
    """
    reference = config.backbone_reference
    source = str(backbone or reference["name"])
    revision = None if backbone else reference["revision"] or None
    try:
        stock = _load_checked(source, revision, reference["digest"], portable_name(str(name)))
    except BackboneError as error:
        raise ModelFolderError(
            f"{error}; if it is elsewhere, pass its path as backbone=… to from_pretrained"
        ) from error
    model = kind(config, stock)
    model.backbone_source = source
    with one_line_errors(ModelFolderError, f"the adapters in {name}", "a complete model.safetensors"):
        file = cached_file(str(name), "model.safetensors", **hub)
        found = load_file(str(file))
    wanted = own_weights(model)
    shapes = {key: found[key].shape for key in wanted.keys() & found.keys()}
    other_shape = [(key, shape, wanted[key].shape) for key, shape in shapes.items() if shape != wanted[key].shape]
    if not other_shape:
        model.load_state_dict(found, strict=False)
    info = {
        "missing_keys": wanted.keys() - found.keys(),
        "unexpected_keys": found.keys() - wanted.keys(),
        "mismatched_keys": other_shape,
    }
    target = (config.dtype if dtype in (None, "auto") else dtype) or torch.float32
    cast: Any = model
    cast.to(getattr(torch, target) if isinstance(target, str) else target)
    model.train(False)
    return model, info
