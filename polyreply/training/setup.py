"""From a recipe to what a run works with: a model with its tokenizer, and tokenised data."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from polyreply.data.batches import BucketedStream, DrawStream, SampleStream
from polyreply.data.context_format import ContextFormat
from polyreply.data.folder import split_files
from polyreply.data.token_corpus import TokenCorpus
from polyreply.data.tokenizer import load_tokenizer, texts_of, train_tokenizer
from polyreply.distributed import Processes
from polyreply.em.em_step import EM
from polyreply.em.optimizer import DecoderOptimizer
from polyreply.em.settings import MLE
from polyreply.errors import DataError, PolyReplyError
from polyreply.models.backbones import SHIPPED, build_mini, load_backbone
from polyreply.models.config import DecoderSettings, PolyReplyConfig
from polyreply.models.pretrained import read_config
from polyreply.progress import Notify, silent
from polyreply.reply import PolyReply
from polyreply.training.recipe import MINI, TrainRecipe

_MOST_UNKNOWN = 0.1
"""Largest share of unknown tokens with which a tokenizer is usable; rare characters in English are far below."""


@dataclass
class Setup:
    """What a run needs besides its recipe."""

    poly: PolyReply
    train: TokenCorpus
    valid: TokenCorpus | None
    valid_file: Path | None

    def identity(self) -> str:
        """Decides whether a checkpoint fits: a digest of the model's configuration and the training data."""
        make = {**self.poly.model.config.to_dict(), "data": self.train.path.stem}
        make["backbone"] = {**make["backbone"], "_name_or_path": ""}  # it may have been moved
        return hashlib.sha256(json.dumps(make, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def start_em(self, recipe: TrainRecipe, processes: Processes) -> EM:
        """A training at its first step."""
        train_shared = recipe.method == MLE or not recipe.em.freeze_shared
        pad = self.poly.tokenizer.pad_token_id
        return EM(
            recipe.method,
            self.poly.model,
            self.train,
            _stream(recipe, self.train, processes),
            DecoderOptimizer(self.poly.model, recipe.optimizer, train_shared=train_shared),
            recipe.em,
            recipe.steps,
            recipe.seed,
            pad_id=0 if pad is None else int(pad),
            autocast=_autocast(recipe, self.poly.device),
            processes=processes,
        )


def prepare_run(recipe: TrainRecipe, data: Path, notify: Notify = silent) -> Setup:
    """Load or build the backbone, give it K decoders, and tokenise the data (or find it in the cache)."""
    files = split_files(data)
    if "train" not in files:
        raise DataError(f"{data}: expected a train split, found {', '.join(files)}; prepare the data again")
    notify("loading the backbone", 0.0)
    backbone, tokenizer, format = _backbone(recipe, files["train"])
    format = recipe.context or format or ContextFormat()
    settings: DecoderSettings = {**_decoder_settings(recipe), "context_format": asdict(format)}
    poly = PolyReply.from_backbone(backbone, tokenizer, backbone_name=recipe.model.backbone, **settings)
    notify("tokenising", 0.3)
    train = TokenCorpus.build(files["train"], poly.tokenizer, format)
    if not len(train):
        raise DataError(f"{files['train']}: expected dialogues to train on, found none; prepare the data again")
    _check_known(train, poly.tokenizer, files["train"])
    valid = TokenCorpus.build(files["valid"], poly.tokenizer, format) if "valid" in files else None
    if recipe.precision == "float64":
        poly.model.double()
    return Setup(poly, train, valid, files.get("valid"))


def _check_known(train: TokenCorpus, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Raise if the tokenizer cannot read the data: T5's has no Chinese and would train on unknown tokens only."""
    share = 0.0 if tokenizer.unk_token_id is None else train.share_of(int(tokenizer.unk_token_id))
    if share > _MOST_UNKNOWN:
        raise DataError(
            f"{file}: expected text that the backbone's tokenizer can read, found {share:.0%} unknown tokens in its "
            f"responses; use a backbone for this language, or model.backbone={MINI}"
        )


def _decoder_settings(recipe: TrainRecipe) -> DecoderSettings:
    """How the backbone gets its decoders. Stage 1 is the backbone as it is: one full decoder."""
    if recipe.method == MLE:
        return {"architecture": "multi-decoder", "num_decoders": 1}
    chosen = {name: value for name, value in asdict(recipe.model).items() if name not in _NOT_OF_DECODERS}
    return cast(DecoderSettings, {**chosen, "shared_weights_changed": not recipe.em.freeze_shared})


_NOT_OF_DECODERS = ("backbone", "mini", "tokenizer", "vocab_size")
"""Fields of a recipe's `model` that choose the backbone and its tokenizer."""


def _backbone(recipe: TrainRecipe, train_file: Path) -> tuple[Any, PreTrainedTokenizerBase, ContextFormat | None]:
    """The backbone, its tokenizer, and the format of contexts that its stage 1 was trained with."""
    chosen, name = recipe.model, recipe.model.backbone
    torch.manual_seed(recipe.seed)  # new weights are drawn after this
    if name == MINI:
        if chosen.tokenizer is None:
            tokenizer: PreTrainedTokenizerBase = train_tokenizer(texts_of(train_file), vocab_size=chosen.vocab_size)
        else:
            tokenizer = load_tokenizer(chosen.tokenizer)
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        return build_mini(chosen.mini, len(tokenizer), seed=recipe.seed, **ids), tokenizer, None
    if name == SHIPPED:
        loaded = PolyReply.from_pretrained(SHIPPED)
        return loaded.model.plain_backbone(), loaded.tokenizer, loaded.model.config.format()
    if _is_stage1_model(name):
        if chosen.tokenizer is not None:
            raise PolyReplyError(f"{name} has a tokenizer of its own, from stage 1; leave model.tokenizer out")
        loaded = PolyReply.from_pretrained(name)
        return loaded.model.backbone, loaded.tokenizer, loaded.model.config.format()
    backbone, own = load_backbone(name, dtype="float32")
    tokenizer_or_none = own if chosen.tokenizer is None else load_tokenizer(chosen.tokenizer)
    if tokenizer_or_none is None:
        raise PolyReplyError(f"{name} holds no tokenizer; name one with model.tokenizer=…")
    return backbone, tokenizer_or_none, None


def _is_stage1_model(name: str) -> bool:
    """Whether a folder holds the model of a stage 1; one of stage 2 cannot be a backbone."""
    if not Path(name, "config.json").is_file():
        return False
    config = read_config(name)
    if config.get("model_type") != PolyReplyConfig.model_type:
        return False
    if config.get("num_decoders") != 1 or config.get("architecture") != "multi-decoder":
        raise PolyReplyError(
            f"expected in {name} a backbone or the model of stage 1, found a model of stage 2 with "
            f"{config.get('num_decoders')} decoders; name the model folder of stage 1"
        )
    return True


def _autocast(recipe: TrainRecipe, device: torch.device) -> torch.dtype | None:
    """The type of the computation where it differs from the weights'; log-likelihoods stay in float32."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    enabled = recipe.precision == "bfloat16" or (recipe.precision == "auto" and has_bf16)
    return torch.bfloat16 if enabled else None


def _stream(recipe: TrainRecipe, corpus: TokenCorpus, processes: Processes) -> SampleStream:
    """Stage 1: batches of similar lengths. Stage 2: random draws, because equal lengths would hide differences."""
    place = {"seed": recipe.seed, "rank": processes.rank, "world_size": processes.size}
    if recipe.method == MLE:
        rows = recipe.optimizer.batch_rows
        return BucketedStream(corpus.context_lengths, corpus.response_lengths, rows=rows, **place)
    return DrawStream(len(corpus), size=recipe.em.e_step_size, **place)
