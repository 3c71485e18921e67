"""The recipe of a training run: what is trained, on what data, and how."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from polyreply.baselines.settings import AdaLabelSettings, DialogBertSettings
from polyreply.config import load_recipe
from polyreply.data.context_format import ContextFormat
from polyreply.em.assign import METHODS, UNEQUAL
from polyreply.em.settings import DIALOGBERT, MLE, SINGLE_DECODER, EMSettings, OptimizerSettings
from polyreply.metrics.tokenize import TokenizerName
from polyreply.models.backbones import MiniConfig
from polyreply.models.settings import Adapt, AdapterInit, AdapterSites, Architecture, BackboneIn, LoraSettings, Prior
from polyreply.training.alarms import AlarmSettings

MINI = "mini"


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    backbone: str = "google-t5/t5-small"
    """A Hugging Face name, a folder (also stage 1's model, or a K-decoder model to train further), a GGUF file, a
    backbone from a package (`smollm2-135m-pip`, `flan-t5-small-pip`), `shipped` (the small T5 that comes with
    polyreply), or `mini`: a T5 from scratch. For dialogbert the utterance encoder: a BERT by its name or folder,
    `minilm-l6-pip` from a package, or `mini`: all from scratch."""
    mini: MiniConfig = field(default_factory=MiniConfig)
    """The sizes of `mini`; for dialogbert those of both encoders (`num_layers`) and of the decoder."""
    tokenizer: str | None = None
    """Name or folder; None means the backbone's own or, for `mini`, one that is trained on the training data."""
    vocab_size: int = 8000
    """Vocabulary of a tokenizer that is trained."""
    num_decoders: int = 10
    """K; stage 1 (`mle`) always has one."""
    architecture: Architecture = "multi-adapter"
    """Thin adapters in one shared decoder, or K full decoders."""
    adapter: str = "bottleneck"
    """The adapter type, a name in `polyreply.models.adapters.ADAPTERS`: bottleneck, as in the paper, or lora."""
    adapt: Adapt = "response"
    """What adapters act on: the response, so that a context is read once for all decoders; or everything, the context
    too, which costs more and is what other tools expect of a LoRA."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Rank, alpha, dropout and targets of the adapter type lora."""
    adapter_size: int | None = None
    """Inner size of a bottleneck adapter; None means half the model's."""
    adapter_sites: AdapterSites = "sublayer"
    """A bottleneck adapter after each sublayer of the decoder, or one after each layer."""
    adapter_init: AdapterInit = "near-identity"
    """How adapters start; `linear` is PyTorch's default for linear layers, as in the paper's authors' code; `large` is
    three times as wide."""
    adapter_skip: bool = True
    """Adapters add to their input, as in the paper's text. If false (with `adapter_init: linear`) they replace it:
    untrained decoders then produce nonsense, and Hard-EM starves them."""
    copy_embeddings: bool = False
    """Full decoders: each with its own embedding."""
    prior: Prior = "uniform"
    """p(z|c): the same for all decoders, or a network that is trained with them."""
    save: BackboneIn = "whole"
    """Whether the finished model folder holds the backbone's weights, or where they are (`reference`): name, revision
    and digest of an unchanged backbone, so that the folder is small."""
    stage1: Literal["weights", "adapter"] = "weights"
    """What stage 1 (`mle`) trains: all weights of the backbone; or one adapter, of which stage 2 begins with K copies,
    so that the backbone stays as it is."""
    shard: bool = False
    """With several processes: each holds a share of the backbone's layers instead of all of them, and layers are
    gathered when they are needed (FSDP2). For a backbone that stays as it is and does not fit on one device."""

    def problems(self) -> Iterator[str]:
        """Values that make no model."""
        if self.num_decoders < 1:
            yield f"num_decoders is {self.num_decoders}; use 1 or more"
        if self.adapter != "bottleneck":  # the registry imports torch, which most recipes do not need yet
            from polyreply.models.adapters import ADAPTERS

            if self.adapter not in ADAPTERS:
                yield f"adapter is {self.adapter}; use one of {', '.join(ADAPTERS)}"
        if self.stage1 == "adapter" and self.architecture != "multi-adapter":
            yield "stage1 is adapter, which needs architecture multi-adapter"
        if not self.adapter_skip and self.adapter_init == "near-identity":
            yield "adapter_init is near-identity, which needs adapter_skip; use adapter_init linear"


@dataclass(frozen=True)
class ValidationSettings:
    """What is measured during training."""

    every: int = 100
    """Steps between validations; there is always one at the end."""
    samples: int = 512
    """Validation samples whose likelihood is measured."""
    contexts: int = 64
    """Validation contexts to reply to; 0 for none."""
    max_new_tokens: int = 32
    """Length limit of those replies."""
    tokenizer: TokenizerName = "wordpunct"
    """How the metrics of those replies split text into words: wordpunct, characters (Chinese), 13a or zh."""
    keep: Literal["best", "last"] = "best"
    """The weights of the finished model: those with the best likelihood, or those of the last step."""
    patience: int | None = None
    """Stop after this many validations without a better likelihood; None means never."""

    def problems(self) -> Iterator[str]:
        """Values that measure nothing."""
        for name, least in (("every", 1), ("samples", 1), ("contexts", 0), ("max_new_tokens", 1)):
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}; use {least} or more"
        if self.patience is not None and self.patience < 1:
            yield f"patience is {self.patience}; use 1 or more, or leave it out"


@dataclass(frozen=True)
class CheckpointSettings:
    """What a run can be resumed from."""

    every: int = 100
    """Steps between checkpoints; there is always one at the end."""
    keep: int = 2
    """How many of the latest are kept."""

    def problems(self) -> Iterator[str]:
        """Values that keep nothing."""
        for name in ("every", "keep"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; use 1 or more"


@dataclass(frozen=True)
class TrainRecipe:
    """One run of `polyreply train`."""

    method: str = "eqhard-em"
    """`mle` for stage 1, the single-decoder model; for stage 2 a method that assigns samples to decoders: eqhard-em,
    hard-em, soft-em, eqsoft-em, eqrandom-fixed, eqrandom-dynamic, relaxed-wta, annealed-wta, or one that you have
    registered; or a single-decoder model that the paper compares with: adalabel, dialogbert."""
    data: str = ""
    """A folder from `polyreply prepare`, whose train split is trained on and whose valid split is measured on; or one
    dialogue file, of which a part is held out."""
    out: str = ""
    """The run folder."""
    steps: int = 1000
    """EM steps, or updates in stage 1."""
    seed: int = 0
    """Determines everything random."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """The type of the computation; auto means bfloat16 where the device is faster with it, else float32; float64 is for
    exact comparisons. Weights that are trained stay in float32, and log-likelihoods are summed in it."""
    device: Literal["auto", "cpu"] = "auto"
    """Auto means a GPU where there is one."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also log to these, through Accelerate: tensorboard, wandb."""
    plots: bool = True
    """Draw usage.png and assignment.png at the end, if matplotlib is installed."""
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextFormat | None = None
    """How a context becomes tokens; None means as in stage 1's model, else the defaults."""
    em: EMSettings = field(default_factory=EMSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    alarms: AlarmSettings = field(default_factory=AlarmSettings)
    adalabel: AdaLabelSettings = field(default_factory=AdaLabelSettings)
    dialogbert: DialogBertSettings = field(default_factory=DialogBertSettings)

    @property
    def has_one_decoder(self) -> bool:
        """Whether a single decoder is trained on everything, as in stage 1."""
        return self.method in SINGLE_DECODER

    @property
    def num_decoders(self) -> int:
        """K of the model that is trained."""
        return 1 if self.has_one_decoder else self.model.num_decoders

    def _changes_backbone(self) -> str:
        """Why the backbone does not stay as it is; empty if it does."""
        if self.has_one_decoder and self.model.stage1 == "weights":
            return "stage 1 trains all weights (model.stage1=adapter leaves them)"
        if not self.has_one_decoder and not self.em.freeze_shared:
            return "em.freeze_shared=false trains it"
        if self.model.architecture != "multi-adapter":
            return f"architecture {self.model.architecture} copies it"
        return ""

    def _keeps_no_backbone(self) -> str:
        """Why the finished model could not refer to its backbone; empty if it can."""
        if self.model.backbone in ("mini", "shipped"):
            return f"{self.model.backbone} is no backbone that can be loaded by its name"
        return self._changes_backbone()

    def problems(self) -> Iterator[str]:
        """Settings that do not fit together."""
        if self.method not in (*SINGLE_DECODER, *METHODS):
            yield f"method is {self.method!r}; use one of {', '.join((*SINGLE_DECODER, *METHODS))}"
        if self.has_one_decoder and self.method != MLE and self.model.stage1 == "adapter":
            yield f"model.stage1 is adapter, but {self.method} trains all weights; use stage1=weights"
        if not self.data:
            yield "data is missing: name a folder from `polyreply prepare` or a dialogue file, as in data=data/chitchat"
        if not self.out:
            yield "out is missing: name the run folder, such as out=runs/first"
        if self.steps < 1:
            yield f"steps is {self.steps}; use 1 or more"
        if self.seed < 0:
            yield f"seed is {self.seed}; use 0 or more"
        if self.model.save == "reference" and (problem := self._keeps_no_backbone()):
            yield f"model.save is reference, which needs a backbone that stays as it is, but {problem}; use save=whole"
        if self.model.shard and (problem := self._changes_backbone()):
            yield f"model.shard is true, which needs a backbone that stays as it is, but {problem}; use shard=false"
        if self.method == DIALOGBERT and self.context and (self.context.prefix or self.context.turn_separator):
            yield "context has a prefix or turn_separator, but dialogbert reads each turn by itself; leave them out"
        size, decoders = self.em.e_step_size, max(self.model.num_decoders, 1)
        may_differ = self.has_one_decoder or self.method in UNEQUAL or self.em.draw_by == "contexts"
        if not may_differ and size % decoders:
            nearest = max(size // decoders, 1) * decoders
            yield (
                f"em.e_step_size {size} cannot be split equally over {decoders} decoders; use a multiple of "
                f"{decoders} such as {nearest}"
            )


def load_train_recipe(source: str | Path | None = None, overrides: Sequence[str] = ()) -> TrainRecipe:
    """A training recipe by a method's name (`eqhard-em`, `mle`), a shipped recipe's name, a file, or the defaults.

    `adalabel` and `dialogbert` are both.
    """
    if str(source) == MLE:
        source = "stage1"
    elif str(source) in METHODS:
        source, overrides = "em", [f"method={source}", *overrides]
    return load_recipe(TrainRecipe, source, overrides)
