"""What a K-decoder model is made of. Saved as `config.json` in its folder."""

from typing import Any, Literal

from transformers import AutoConfig, PretrainedConfig

from polyreply.data.context_format import ContextFormat
from polyreply.errors import PolyReplyError
from polyreply.models.families import family_of

SCHEMA_VERSION = 1

Architecture = Literal["multi-adapter", "multi-decoder"]


class PolyReplyConfig(PretrainedConfig):
    """Backbone, K, and how the K decoders differ; and how a context becomes tokens."""

    model_type = "polyreply"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        architecture: Architecture = "multi-adapter",
        num_decoders: int = 10,
        adapter_size: int | None = None,
        adapter_activation: str = "relu",
        adapter_sites: Literal["sublayer", "layer"] = "sublayer",
        adapter_init: Literal["near-identity", "linear", "large"] = "near-identity",
        adapter_skip: bool = True,
        copy_embeddings: bool = False,
        prior: Literal["uniform", "learned"] = "uniform",
        context_format: dict[str, Any] | None = None,
        shared_weights_changed: bool = False,
        schema_version: int = SCHEMA_VERSION,
        **options: Any,
    ) -> None:
        """See the fields' names in docs/model.md; `adapter_size` None means half the model's size."""
        self.backbone = backbone or {}
        self.architecture = architecture
        self.num_decoders = num_decoders
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

    def backbone_config(self) -> Any:
        """The backbone's own configuration."""
        settings = dict(self.backbone)
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    def format(self) -> ContextFormat:
        """How a context becomes tokens."""
        return ContextFormat(**self.context_format)

    def check(self) -> None:
        """Raises one clear line when the parts do not fit."""
        if self.schema_version > SCHEMA_VERSION:
            raise PolyReplyError(
                f"this model folder has schema version {self.schema_version}, this polyreply reads up to "
                f"{SCHEMA_VERSION}; upgrade polyreply"
            )
        if self.num_decoders < 1:
            raise PolyReplyError(f"num_decoders must be 1 or more, found {self.num_decoders}")
        if not self.backbone:
            raise PolyReplyError("expected a backbone in the configuration, found none")
        if self.architecture == "multi-decoder" and self.num_decoders > 1 and not self.is_encoder_decoder:
            raise PolyReplyError(
                "multi-decoder needs an encoder-decoder backbone such as T5 or BART, found "
                f"{self.backbone['model_type']}; use architecture multi-adapter"
            )
