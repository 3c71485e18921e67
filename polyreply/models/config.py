"""The configuration of a K-decoder model, saved as `config.json` in its folder."""

from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any, TypedDict

from transformers import AutoConfig, PretrainedConfig

from polyreply.data.context_format import ContextFormat
from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version
from polyreply.models.families import family_of
from polyreply.models.settings import Adapt, AdapterInit, AdapterSites, Architecture, LoraSettings, Prior

SCHEMA_VERSION = 1


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
    lora: LoraSettings | dict[str, Any]
    """Rank, alpha, dropout and targets of the adapter type `lora`."""
    adapt: Adapt
    """What adapters act on: the response, so that a context is read once for all decoders, or the context too."""
    invocation_tokens: list[int]
    """Decoder-only models: the constant tokens at the end of every context, on which adapters begin to act."""
    single_adapter: int | None
    """Where stage 1 trained an adapter: which one it is, 0 in its own model and K in one of stage 2, which keeps it for
    the ways to decode without K decoders. None means that the single-decoder model has no adapter."""
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
        lora: LoraSettings | dict[str, Any] | None = None,
        adapt: Adapt = "response",
        invocation_tokens: list[int] | None = None,
        single_adapter: int | None = None,
        backbone_reference: dict[str, str] | None = None,
        copy_embeddings: bool = False,
        prior: Prior = "uniform",
        context_format: dict[str, Any] | None = None,
        shared_weights_changed: bool = False,
        manners: list[str] | None = None,
        schema_version: int = SCHEMA_VERSION,
        **options: Any,
    ) -> None:
        """`backbone` is the backbone's own configuration as a dictionary; `DecoderSettings` describes the others.

        `backbone_reference` says where the backbone's weights are, if they are not in the model's folder. `manners`
        says in a few words what each decoder tends to do, for people.
        """
        self.backbone = backbone or {}
        self.architecture = architecture
        self.num_decoders = num_decoders
        self.adapter = adapter
        self.adapter_size = adapter_size
        self.adapter_activation = adapter_activation
        self.adapter_sites = adapter_sites
        self.adapter_init = adapter_init
        self.adapter_skip = adapter_skip
        self.lora = asdict(lora) if isinstance(lora, LoraSettings) else lora or {}
        self.adapt = adapt
        self.invocation_tokens = invocation_tokens or []
        self.single_adapter = single_adapter
        self.backbone_reference = backbone_reference or {}
        self.copy_embeddings = copy_embeddings
        self.prior = prior
        self.context_format = context_format or {}
        self.shared_weights_changed = shared_weights_changed
        self.manners = manners or []
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
        settings = {name: value for name, value in self.backbone.items() if name != "dtype"}  # that of the whole model
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    def format(self) -> ContextFormat:
        """How a context becomes tokens."""
        return ContextFormat(**self.context_format)

    def lora_settings(self) -> LoraSettings:
        """The settings of the adapter type `lora`."""
        return LoraSettings(**{**self.lora, "targets": tuple(self.lora.get("targets", LoraSettings.targets))})

    @property
    def num_adapters(self) -> int:
        """The number of adapters at a site: K, and one more where that of stage 1 is kept."""
        return max(self.num_decoders, 0 if self.single_adapter is None else self.single_adapter + 1)

    @property
    def num_invocation_tokens(self) -> int:
        """Decoder-only models: how many of the last context tokens each decoder reads itself."""
        return max(1, len(self.invocation_tokens)) if self.adapt == "response" else 1

    def check(self) -> None:
        """Raise if the settings do not fit together."""
        check_schema_version("this model folder", self.schema_version, SCHEMA_VERSION)
        if self.num_decoders < 1:
            raise PolyReplyError(f"num_decoders must be 1 or more, found {self.num_decoders}")
        if not self.backbone:
            raise PolyReplyError("expected a backbone in the configuration, found none")
        if self.manners and len(self.manners) != self.num_decoders:
            raise PolyReplyError(
                f"expected {self.num_decoders} manners in the configuration, one for each decoder, or none, found "
                f"{len(self.manners)}"
            )
        for problem in self.lora_settings().problems() if self.adapter == "lora" else ():
            raise PolyReplyError(f"lora: {problem}")
        if self.architecture == "multi-decoder" and self.num_decoders > 1 and not self.is_encoder_decoder:
            raise PolyReplyError(
                "multi-decoder needs an encoder-decoder backbone such as T5 or BART, found "
                f"{self.backbone['model_type']}; use architecture multi-adapter"
            )


def portable_name(name: str) -> str:
    """The name of a model without the folders it was loaded from, which mean nothing on another machine."""
    is_path = PurePath(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name
    return PurePath(name.replace("\\", "/")).name if is_path or Path(name).is_dir() else name
