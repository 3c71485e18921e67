"""Presets: how large the experiments are.

`mini` is for two cores, `smoke` for a test, `flan` for a real pretrained backbone without a GPU, `paper` for a GPU and
a network. All experiments of a preset share its data, its stage 1 and its settings, so that systems differ in nothing
else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from polyreply.config import as_overrides, load_recipe
from polyreply.data.context_format import ContextFormat
from polyreply.em.settings import EMSettings, OptimizerSettings
from polyreply.errors import RecipeError
from polyreply.models.backbones import MiniConfig
from polyreply.training.recipe import CheckpointSettings, ModelSettings, ValidationSettings


@dataclass(frozen=True)
class StageSettings:
    """One of the two stages of training."""

    steps: int = 200
    """Updates of stage 1, or EM steps of stage 2: the same number for every method."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    """Always on the selection half of valid."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)


@dataclass(frozen=True)
class LearningRates:
    """The learning rates of stage 2: the same choice for every method of a family."""

    adapters: tuple[float, ...] = (3e-3,)
    """For adapters."""
    decoders: tuple[float, ...] = (5e-4,)
    """For full decoders."""
    adalabel: tuple[float, ...] = (1e-3,)
    """For AdaLabel."""
    dialogbert: tuple[float, ...] = (5e-4,)
    """For DialogBERT."""
    select: Literal["first", "mixture_nll", "bleu2_f"] = "first"
    """`first`: take the first. Otherwise train each method with each rate on the first seed, and take for all seeds the
    rate with the best last validation, by likelihood of the mixture or BLEU2-F (which needs
    stage_2.validation.contexts)."""
    trial_steps: int | None = None
    """EM steps of the trainings by which it is chosen, and the same part of the updates of AdaLabel and DialogBERT;
    None: as many as stage 2 has, so they serve as results too."""

    def problems(self) -> Iterator[str]:
        """Rates that cannot be used."""
        for name in ("adapters", "decoders", "adalabel", "dialogbert"):
            if not getattr(self, name):
                yield f"{name} is empty; name one learning rate or more"
            if any(rate <= 0 for rate in getattr(self, name)):
                yield f"{name} is {list(getattr(self, name))}; use numbers above 0"
        if self.trial_steps is not None and self.trial_steps < 1:
            yield f"trial_steps is {self.trial_steps}; use 1 or more"


@dataclass(frozen=True)
class SmalltalkSettings:
    """The experiments on smalltalk, whose modes are known: mode-recovery and half of figure-bound."""

    stage_1_steps: int = 2000
    """Updates of its stage 1."""
    em_steps: int = 90
    """EM steps of every method."""
    e_step_size: int = 320
    """N there."""
    pairs: int = 1000
    """Held-out pairs to measure on."""
    contexts: int = 100
    """Held-out contexts to reply to."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of every method."""

    def problems(self) -> Iterator[str]:
        """Missing or repeated seeds."""
        yield from _list_problems("seeds", self.seeds, 1)


@dataclass(frozen=True)
class Preset:
    """The settings that the experiments share."""

    language: Literal["auto", "en", "zh"] = "auto"
    """Decides the metrics' tokenizer (characters for zh) and the word that is counted; auto: by the data."""
    detokenize: Literal["auto", "always", "never"] = "auto"
    """Whether texts of a data folder that were split into tokens ("I don ' t know .") are joined ("I don't know."), in
    all splits alike; auto: if most punctuation marks at the end of words have a space before them in one of them."""
    paper_dataset: Literal["auto", "weibo", "opensubtitles"] = "auto"
    """Which numbers of the paper are shown with ours; auto: Weibo's for Chinese or several references per context."""
    selection_share: float = 0.5
    """Share of the contexts of valid for choices: validation during training, learning rates. Without a test split the
    other contexts give the final numbers."""
    contexts: int = 500
    """Contexts of the final numbers at most, drawn at random."""
    max_new_tokens: int = 32
    """Longest reply, in tokens."""
    min_new_tokens: int = 0
    """Shortest reply, in tokens."""
    no_repeat_ngram_size: int = 0
    """No reply repeats a group of so many tokens; 0: no such rule. All three hold for every system, whatever a
    backbone's own generation config says."""
    reply_batch: int = 16
    """Contexts per batch of replies."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of stage 2 in table-em, table-main, table-starvation, table-draws and table-ours."""
    other_seeds: tuple[int, ...] = (0,)
    """Seeds of stage 2 in the other tables and figures; those of table-em are free."""
    second_seeds: tuple[int, ...] = (0,)
    """Seeds of table-em's second block, with dropout in the E-step reversed; empty: no second block."""
    context: ContextFormat = field(default_factory=lambda: ContextFormat(max_context_tokens=64, max_response_tokens=40))
    model: ModelSettings = field(default_factory=ModelSettings)
    em: EMSettings = field(default_factory=EMSettings)
    stage_1: StageSettings = field(default_factory=StageSettings)
    stage_2: StageSettings = field(default_factory=StageSettings)
    rates: LearningRates = field(default_factory=LearningRates)
    adalabel: StageSettings = field(default_factory=StageSettings)
    """The training of AdaLabel, on the backbone that stage 1 starts from."""
    dialogbert: StageSettings = field(default_factory=StageSettings)
    """The training of DialogBERT."""
    utterance_encoder: str = "mini"
    """DialogBERT's `model.backbone`: a BERT, or `mini`."""
    dialogbert_sizes: MiniConfig = field(default_factory=lambda: MiniConfig(256, 1024, 6, 6, 2))
    """The sizes of DialogBERT, if it is trained from scratch: by default its authors' `tiny`."""
    nucleus: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    """The p of nucleus sampling from which table-main chooses one, by BLEU2-F on the selection half."""
    cases: tuple[int, ...] = (0, 1, 2)
    """Rows of the final contexts that table-cases shows."""
    word: str = ""
    """The word that figure-decoders counts; empty: 喜欢 (like, love) in Chinese as in the paper, else the most frequent
    one of four letters or more in the references."""
    scaling: tuple[int, ...] = (5, 10, 15)
    """K of figure-scaling."""
    speed_contexts: int = 64
    """Contexts by which table-efficiency measures samples per second."""
    smalltalk: SmalltalkSettings = field(default_factory=SmalltalkSettings)
    study: str = ""
    """Folder of a human evaluation by `polyreply study`, for table-human."""

    def problems(self) -> Iterator[str]:
        """Settings that cannot be used."""
        if not 0 < self.selection_share < 1:
            yield f"selection_share is {self.selection_share}; use a share between 0 and 1"
        for name, least in (("seeds", 1), ("other_seeds", 1), ("second_seeds", 0)):
            yield from _list_problems(name, getattr(self, name), least)
        yield from _list_problems("scaling", self.scaling, 1)
        yield from _list_problems("nucleus", self.nucleus, 1)
        if not all(0 < share <= 1 for share in self.nucleus):
            yield f"nucleus is {list(self.nucleus)}; use shares above 0 and at most 1"
        if any(k < 1 for k in self.scaling):
            yield f"scaling is {list(self.scaling)}; every K has to be 1 or more"
        leasts = {"contexts": 1, "max_new_tokens": 1, "reply_batch": 1, "speed_contexts": 1}
        for name, least in {**leasts, "min_new_tokens": 0, "no_repeat_ngram_size": 0}.items():
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}; use {least} or more"
        if self.min_new_tokens > self.max_new_tokens:
            yield f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}; lower it"
        if self.em.e_step_size % max(self.model.num_decoders, 1):
            yield (
                f"em.e_step_size {self.em.e_step_size} cannot be split equally over {self.model.num_decoders} "
                "decoders; use a multiple"
            )


def _list_problems(name: str, values: Sequence[float], least: int) -> Iterator[str]:
    """Too few values, or repeated ones."""
    if len(values) < least:
        yield f"{name} is empty; name one or more, such as [0, 1]"
    if len(set(values)) < len(values):
        yield f"{name} is {list(values)}; name each once"


_MINI: dict[str, Any] = {
    "contexts": 1000,
    "min_new_tokens": 8,
    "no_repeat_ngram_size": 3,
    "model.backbone": "shipped",
    "em.e_step_size": 60,
    "rates": {
        "adapters": [1e-3, 3e-3],
        "adalabel": [3e-4, 1e-3],
        "dialogbert": [3e-4, 1e-3],
        "select": "mixture_nll",
        "trial_steps": 30,
    },
    "smalltalk.seeds": [0, 1, 2],
    "adalabel": {
        "steps": 1500,
        "optimizer": {"warmup_steps": 100, "schedule": "cosine", "clip_norm": 1.0},
        "validation": {"every": 250, "contexts": 0, "samples": 512, "keep": "last"},
        "checkpoint": {"every": 250},
    },
    "dialogbert": {
        "steps": 1500,
        "optimizer": {
            "weight_decay": 0.01,
            "warmup_steps": 100,
            "schedule": "linear",
            "clip_norm": 1.0,
            "batch_rows": 32,
        },
        "validation": {"every": 250, "contexts": 0, "samples": 512, "keep": "last"},
        "checkpoint": {"every": 250},
    },
    "stage_1": {
        "steps": 1500,
        "optimizer": {
            "learning_rate": 1e-2,
            "relative": True,
            "schedule": "cosine",
            "warmup_steps": 100,
            "clip_norm": 1.0,
        },
        "validation": {"every": 250, "contexts": 0, "samples": 512},
        "checkpoint": {"every": 250},
    },
    "stage_2": {
        "steps": 100,
        "optimizer": {"schedule": "cosine", "clip_norm": 1.0},
        "validation": {"every": 50, "samples": 256, "contexts": 0, "keep": "last"},
        "checkpoint": {"every": 25},
    },
}
_SMOKE: dict[str, Any] = {
    "model.backbone": "mini",
    "model.mini": {"d_model": 16, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_kv": 8},
    "model.vocab_size": 400,
    "model.num_decoders": 3,
    "em.e_step_size": 24,
    "stage_1": {
        "steps": 150,
        "optimizer": {"learning_rate": 1e-2, "batch_rows": 32},
        "validation": {"every": 150, "contexts": 0, "samples": 16},
    },
    "stage_2": {
        "steps": 4,
        "validation": {"every": 4, "contexts": 4, "samples": 12, "max_new_tokens": 8, "keep": "last"},
    },
    "rates": {"adapters": [1e-2], "decoders": [1e-2], "adalabel": [1e-2], "dialogbert": [1e-2]},
    "adalabel": {
        "steps": 12,
        "optimizer": {"batch_rows": 32},
        "validation": {"every": 12, "contexts": 0, "samples": 12, "keep": "last"},
    },
    "dialogbert": {
        "steps": 12,
        "optimizer": {"batch_rows": 32},
        "validation": {"every": 12, "contexts": 0, "samples": 12, "keep": "last"},
    },
    "dialogbert_sizes": {"d_model": 16, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2},
    "nucleus": [0.5, 0.9],
    "contexts": 12,
    "max_new_tokens": 8,
    "speed_contexts": 4,
    "scaling": [2, 3, 4],
    "smalltalk": {"stage_1_steps": 4, "em_steps": 2, "e_step_size": 20, "pairs": 40, "contexts": 4},
}
_PAPER: dict[str, Any] = {
    "model.backbone": "google-t5/t5-small",
    "model.adapter_size": 256,
    "model.adapter_init": "linear",
    "em": {"e_step_size": 640, "likelihood": "mean", "cost": "nll", "e_step_dropout": True},
    "context": {"max_context_tokens": 128, "max_response_tokens": 64},
    "stage_1": {
        "steps": 100_000,
        "optimizer": {"learning_rate": 1e-3, "batch_rows": 64, "max_tokens": 32_768},
        "validation": {"every": 2000, "samples": 4096, "contexts": 0, "patience": 5},
        "checkpoint": {"every": 2000},
    },
    "stage_2": {
        "steps": 10_000,
        "optimizer": {"max_tokens": 32_768},
        "validation": {"every": 500, "samples": 2048, "contexts": 256, "max_new_tokens": 64, "keep": "last"},
        "checkpoint": {"every": 500},
    },
    "rates": {"adapters": [1e-3], "decoders": [1e-3], "adalabel": [1e-4], "dialogbert": [5e-5]},
    "adalabel": {
        "steps": 100_000,
        "optimizer": {"clip_norm": 1.0, "batch_rows": 128, "max_tokens": 32_768},
        "validation": {"every": 2000, "samples": 4096, "contexts": 0},
        "checkpoint": {"every": 2000},
    },
    "dialogbert": {
        "steps": 100_000,
        "optimizer": {
            "weight_decay": 0.01,
            "warmup_steps": 5000,
            "schedule": "linear",
            "clip_norm": 1.0,
            "batch_rows": 32,
            "max_tokens": 32_768,
        },
        "validation": {"every": 2000, "samples": 4096, "contexts": 0},
        "checkpoint": {"every": 2000},
    },
    "utterance_encoder": "google-bert/bert-base-uncased",
    "contexts": 12_000,
    "max_new_tokens": 64,
    "reply_batch": 64,
    "speed_contexts": 512,
}
_FLAN: dict[str, Any] = {
    **_MINI,
    "model.backbone": "flan-t5-small-pip",
    "model.num_decoders": 5,
    "contexts": 500,
    "em.e_step_size": 40,
    "rates": {"adapters": [1e-3], "adalabel": [5e-4], "dialogbert": [3e-4]},
    "adalabel.steps": 300,
    "dialogbert.steps": 500,
    "utterance_encoder": "minilm-l6-pip",
    "seeds": [0],
    "second_seeds": [],
    "scaling": [3, 5],
    "stage_1": {
        "steps": 300,
        "optimizer": {"learning_rate": 5e-4, "schedule": "cosine", "warmup_steps": 30, "clip_norm": 1.0},
        "validation": {"every": 100, "contexts": 0, "samples": 256},
        "checkpoint": {"every": 50, "keep": 1},
    },
}
PRESETS: dict[str, dict[str, Any]] = {"mini": _MINI, "smoke": _SMOKE, "flan": _FLAN, "paper": _PAPER}
"""What each preset changes in the defaults."""
_CHINESE: dict[str, dict[str, Any]] = {
    "mini": {"model.backbone": "mini", "stage_1.optimizer.learning_rate": 2e-2},
    "smoke": {"model.vocab_size": 8000},
}
"""What they also change for Chinese, which the shipped backbone cannot read, and which has thousands of characters."""


def load_preset(name: str, overrides: Sequence[str] = (), language: Literal["en", "zh"] = "en") -> Preset:
    """A preset for data in that language, changed by `key=value` settings."""
    if name not in PRESETS:
        raise RecipeError(f"preset: expected one of {', '.join(PRESETS)}, found {name!r}; name one of these")
    settings = {**PRESETS[name], **(_CHINESE.get(name, {}) if language == "zh" else {})}
    return load_recipe(Preset, None, [*as_overrides(settings), *overrides])
