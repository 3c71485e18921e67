"""The configuration of a K-decoder model, saved as `config.json` in its folder."""

from pathlib import Path, PurePath
from typing import Any, Literal, TypedDict

from transformers import AutoConfig, PretrainedConfig

from polyreply.data.context_format import ContextFormat
from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version
from polyreply.models.families import family_of

SCHEMA_VERSION = 1

Architecture = Literal["multi-adapter", "multi-decoder"]
AdapterSites = Literal["sublayer", "layer"]
AdapterInit = Literal["near-identity", "linear", "large"]
Prior = Literal["uniform", "learned"]


class DecoderSettings(TypedDict, total=False):
    """What can be chosen when a backbone gets K decoders; `PolyReplyConfig` has the defaults."""

    num_decoders: int
    """K."""
    architecture: Architecture
    """Adapters in one shared decoder, or K full decoders."""
    adapter: str
    """The adapter type, a name in `polyreply.models.adapters.ADAPTERS`."""
    adapter_size: int | None
    """Inner size of an adapter; None means half the model's size."""
    adapter_activation: str
    """Nonlinearity of an adapter, by its name in Transformers."""
    adapter_sites: AdapterSites
    """An adapter after each sublayer of the decoder, or after each layer."""
    adapter_init: AdapterInit
    """How adapters start."""
    adapter_skip: bool
    """Whether an adapter adds to its input or replaces it."""
    copy_embeddings: bool
    """multi-decoder: whether every decoder has its own embedding."""
    prior: Prior
    """p(z|c): uniform over decoders, or a small network over the encoded context."""
    context_format: dict[str, Any]
    """How a context becomes tokens: the fields of a `ContextFormat`."""
    shared_weights_changed: bool
    """Whether stage 2 trains the shared weights, so that the backbone alone is no longer the model of stage 1."""


class PolyReplyConfig(PretrainedConfig):
    """The backbone, K, how the K decoders differ, and how a context becomes tokens."""

    model_type = "polyreply"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        architecture: Architecture = "multi-adapter",
        num_decoders: int = 10,
        adapter: str = "bottleneck",
        adapter_size: int | None = None,
        adapter_activation: str = "relu",
        adapter_sites: AdapterSites = "sublayer",
        adapter_init: AdapterInit = "near-identity",
        adapter_skip: bool = True,
        copy_embeddings: bool = False,
        prior: Prior = "uniform",
        context_format: dict[str, Any] | None = None,
        shared_weights_changed: bool = False,
        schema_version: int = SCHEMA_VERSION,
        **options: Any,
    ) -> None:
        """`backbone` is the backbone's own configuration as a dictionary; `DecoderSettings` describes the others."""
        self.backbone = backbone or {}
        self.architecture = architecture
        self.num_decoders = num_decoders
        self.adapter = adapter
        self.adapter_size = adapter_size
        self.adapter_activation = adapter_activation
        self.adapter_sites = adapter_sites
        self.adapter_init = adapter_init
        self.adapter_skip = adapter_skip
        self.copy_embeddings = copy_embeddings
        self.prior = prior
        self.context_format = context_format or {}
        self.shared_weights_changed = shared_weights_changed
        self.schema_version = schema_version
        if self.backbone:
            options["is_encoder_decoder"] = bool(family_of(self.backbone["model_type"]).encoder)
        options["tie_word_embeddings"] = True  # for the embedding that the decoders of multi-decoder share
        super().__init__(**options)

    @property
    def backbone_name(self) -> str:
        """The name the backbone was loaded by; empty if it was built in code."""
        return str(self.backbone.get("_name_or_path") or "")

    def backbone_config(self) -> Any:
        """The backbone's own configuration."""
        settings = dict(self.backbone)
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    def format(self) -> ContextFormat:
        """How a context becomes tokens."""
        return ContextFormat(**self.context_format)

    def check(self) -> None:
        """Raise if the settings do not fit together."""
        check_schema_version("this model folder", self.schema_version, SCHEMA_VERSION)
        if self.num_decoders < 1:
            raise PolyReplyError(f"num_decoders must be 1 or more, found {self.num_decoders}")
        if not self.backbone:
            raise PolyReplyError("expected a backbone in the configuration, found none")
        if self.architecture == "multi-decoder" and self.num_decoders > 1 and not self.is_encoder_decoder:
            raise PolyReplyError(
                "multi-decoder needs an encoder-decoder backbone such as T5 or BART, found "
                f"{self.backbone['model_type']}; use architecture multi-adapter"
            )


def portable_name(name: str) -> str:
    """The name of a model without the folders it was loaded from, which mean nothing on another machine."""
    is_path = PurePath(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    return PurePath(name.replace("\\", "/")).name if is_path or Path(name).is_dir() else name
