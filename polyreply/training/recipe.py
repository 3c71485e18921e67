"""The recipe of a training run: what is trained, on what, and how."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from polyreply.data.context_format import ContextFormat
from polyreply.em.assign import Cost, temperature_at
from polyreply.metrics.tokenize import TokenizerName
from polyreply.models.backbones import MiniConfig
from polyreply.training.alarms import AlarmSettings

AnyMethod = Literal["mle", "eqhard-em", "soft-em", "hard-em", "eqrandom-fixed", "eqrandom-dynamic", "eqsoft-em"]
MINI = "mini"


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    backbone: str = "google-t5/t5-small"
    """A Hugging Face name, a folder (also stage 1's model), `flan-t5-small-pip`, `shipped` (the package's own model
    without its adapters), or `mini`: a T5 from scratch."""
    mini: MiniConfig = field(default_factory=MiniConfig)
    """The sizes of `mini`."""
    tokenizer: str | None = None
    """Name or folder; None means the backbone's own or, for `mini`, one that is trained on the training data."""
    vocab_size: int = 8000
    """Pieces of a tokenizer that is trained."""
    num_decoders: int = 10
    """K; stage 1 (`mle`) always has one."""
    architecture: Literal["multi-adapter", "multi-decoder"] = "multi-adapter"
    """Thin adapters in one shared decoder, or K full decoders."""
    adapter_size: int | None = None
    """Inner size of an adapter; None means half the model's."""
    adapter_sites: Literal["sublayer", "layer"] = "sublayer"
    """An adapter after each sublayer of the decoder, or one after each layer."""
    adapter_init: Literal["near-identity", "linear", "large"] = "near-identity"
    """How adapters start; `linear` is PyTorch's default for linear layers, as the paper's authors have it; `large` is
    three times as wide."""
    adapter_skip: bool = True
    """Adapters add to what they are given, as in the paper's text. If false (with `adapter_init: linear`) they keep
    nothing of it, untrained decoders talk nonsense, and Hard-EM starves them."""
    copy_embeddings: bool = False
    """Full decoders: each with an embedding of its own."""
    prior: Literal["uniform", "learned"] = "uniform"
    """p(z|c): the same for all decoders, or a network that is trained with them."""

    def problems(self) -> Iterator[str]:
        """Values that make no model."""
        if self.num_decoders < 1:
            yield f"num_decoders is {self.num_decoders}; use 1 or more"
        if not self.adapter_skip and self.adapter_init == "near-identity":
            yield "adapter_init is near-identity, which adapters without adapter_skip cannot be; use linear"


@dataclass(frozen=True)
class EMSettings:
    """The E-step."""

    e_step_size: int = 640
    """N: samples of one EM step, over all processes. K has to divide it."""
    likelihood: Literal["sum", "mean"] = "sum"
    """log p(response|z,c): summed over its tokens as in the paper's text, or averaged as in its authors' code."""
    cost: Cost = "posterior"
    """What a balanced assignment minimises: minus the posterior (the paper's text), or NLL (its authors' code)."""
    e_step_dropout: bool = False
    """Dropout while scoring. It gives every decoder noise of its own, which hides which decoder is best."""
    e_step_scope: Literal["draw", "corpus"] = "draw"
    """Assign each draw of N samples by itself, or a whole epoch at once before it begins."""
    e_step_max_tokens: int | None = None
    """Score only the first tokens of each response; None means all."""
    temperature: float = 1.0
    """eqsoft-em: the weight of the entropy at the start, in the units of the cost."""
    final_temperature: float | None = None
    """eqsoft-em: the weight it falls to; None means that it stays."""
    anneal_steps: int = 200
    """eqsoft-em: EM steps until it has fallen."""
    freeze_shared: bool = True
    """Train only what differs between decoders (and the prior)."""

    def problems(self) -> Iterator[str]:
        """Values no E-step can use."""
        if self.e_step_size < 1:
            yield f"e_step_size is {self.e_step_size}; use 1 or more"
        if self.e_step_max_tokens is not None and self.e_step_max_tokens < 1:
            yield f"e_step_max_tokens is {self.e_step_max_tokens}; use 1 or more, or leave it out"
        if min(self.temperature, self.final_temperature or self.temperature) <= 0:
            yield "temperature and final_temperature must be above 0; use hard assignment (eqhard-em) for none"
        if self.anneal_steps < 1:
            yield f"anneal_steps is {self.anneal_steps}; use 1 or more"

    def temperature_at(self, step: int) -> float:
        """eqsoft-em's temperature at an EM step."""
        end = self.temperature if self.final_temperature is None else self.final_temperature
        return temperature_at(step, self.temperature, end, self.anneal_steps)


@dataclass(frozen=True)
class OptimizerSettings:
    """The M-step: Adam, one step for each decoder that has samples."""

    learning_rate: float = 1e-3
    """Of every decoder; adapters on a frozen backbone often learn faster with more, such as 3e-3."""
    relative: bool = False
    """The learning rate of each weight matrix is a share of its root mean square. For a T5 from scratch, whose
    embeddings begin twenty times as large as its other weights and would learn too slowly; with a rate such as 0.02."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's two averages."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: stay, or fall to zero at the last step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    clip_norm: float | None = None
    """Largest norm of the gradient of one decoder (and of the shared weights, where they are trained)."""
    batch_rows: int = 64
    """Stage 1: samples of one update, over all processes, of similar lengths."""
    max_tokens: int = 2048
    """Tokens that go through the decoders at once; smaller needs less memory and changes nothing but rounding."""

    def problems(self) -> Iterator[str]:
        """Values Adam cannot use."""
        if self.learning_rate <= 0:
            yield f"learning_rate is {self.learning_rate}; use a number above 0"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas are {self.betas}; use numbers from 0 to below 1"
        if self.clip_norm is not None and self.clip_norm <= 0:
            yield f"clip_norm is {self.clip_norm}; use a number above 0, or leave it out"
        for name, least in (("batch_rows", 1), ("max_tokens", 1), ("warmup_steps", 0)):
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}; use {least} or more"


@dataclass(frozen=True)
class ValidationSettings:
    """What is measured on the way."""

    every: int = 100
    """Steps between validations; there is always one at the end."""
    samples: int = 512
    """Validation samples whose likelihood is measured."""
    contexts: int = 64
    """Validation contexts that are replied to; 0 for none."""
    max_new_tokens: int = 32
    """Length limit of those replies."""
    tokenizer: TokenizerName = "wordpunct"
    """How the metrics of those replies cut text into words: wordpunct, characters (Chinese), 13a or zh."""
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
    """What can be gone on from."""

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

    method: AnyMethod = "eqhard-em"
    """`mle` for stage 1, the single-decoder model; a way to assign samples to decoders for stage 2."""
    data: str = ""
    """A folder made by `polyreply prepare`: its train split is trained on, its valid split measured on."""
    out: str = ""
    """The run folder."""
    steps: int = 1000
    """EM steps, or updates in stage 1."""
    seed: int = 0
    """Decides everything random."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """The type of the computation; auto means bfloat16 where the device has it (not on a CPU); float64 is for exact
    comparisons."""
    device: Literal["auto", "cpu"] = "auto"
    """Auto means a GPU where there is one."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also log to these, through Accelerate: tensorboard, wandb."""
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextFormat | None = None
    """How a context becomes tokens; None means as in stage 1's model, else the defaults."""
    em: EMSettings = field(default_factory=EMSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    alarms: AlarmSettings = field(default_factory=AlarmSettings)

    @property
    def num_decoders(self) -> int:
        """K of the model that is trained."""
        return 1 if self.method == "mle" else self.model.num_decoders

    def problems(self) -> Iterator[str]:
        """Parts that do not fit each other."""
        if not self.data:
            yield "data is missing: name a folder made by `polyreply prepare`, such as data=data/chitchat"
        if not self.out:
            yield "out is missing: name the run folder, such as out=runs/first"
        if self.steps < 1:
            yield f"steps is {self.steps}; use 1 or more"
        if self.seed < 0:
            yield f"seed is {self.seed}; use 0 or more"
        size, decoders = self.em.e_step_size, max(self.model.num_decoders, 1)
        if self.method != "mle" and size % decoders:
            nearest = max(size // decoders, 1) * decoders
            yield (
                f"em.e_step_size is {size}, which K = {decoders} does not divide, so the decoders cannot get equally "
                f"many samples; use a multiple of K such as {nearest}"
            )
