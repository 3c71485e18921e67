"""From a recipe to what a run works with: tokens, a model and its tokenizer."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from polyreply.data.batches import BucketedStream, DrawStream, SampleStream, collate
from polyreply.data.context_format import ContextFormat
from polyreply.data.token_corpus import TokenCorpus
from polyreply.data.token_report import split_files, texts_of
from polyreply.data.tokenizer import load_tokenizer, train_tokenizer
from polyreply.distributed import Processes
from polyreply.errors import DataError, PolyReplyError
from polyreply.models.architectures import new_backbone
from polyreply.models.backbones import build_mini, load_backbone
from polyreply.models.config import PolyReplyConfig
from polyreply.models.pretrained import read_config
from polyreply.models.score import Samples
from polyreply.models.shipped import SHIPPED
from polyreply.progress import Notify, silent
from polyreply.reply import PolyReply
from polyreply.training.recipe import MINI, TrainRecipe

_MOST_UNKNOWN = 0.1
"""Share of unknown tokens from which on a tokenizer is no use; strange signs in English are far below."""


@dataclass
class Setup:
    """Everything a run needs besides its recipe."""

    poly: PolyReply
    train: TokenCorpus
    valid: TokenCorpus | None
    valid_file: Path | None
    pad_id: int

    def identity(self) -> str:
        """What decides whether a checkpoint is of this run: the model's make and the very data it is trained on."""
        make = {**self.poly.model.config.to_dict(), "data": self.train.path.stem}
        make["backbone"] = {**make["backbone"], "_name_or_path": ""}  # it may have been moved
        return hashlib.sha256(json.dumps(make, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def samples(self, corpus: TokenCorpus, ids: Any) -> Samples:
        """Some samples of a corpus, on the model's device."""
        return Samples.of(collate(corpus, ids, self.pad_id), self.poly.device)


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """The type of the computation where it is not the weights' own; log-likelihoods stay in float32."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    enabled = recipe.precision == "bfloat16" or (recipe.precision == "auto" and has_bf16)
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def prepare_run(recipe: TrainRecipe, notify: Notify = silent) -> Setup:
    """Loads or builds the backbone, gives it K decoders, and tokenises the data (or finds it in the cache)."""
    files = split_files(Path(recipe.data))
    if "train" not in files:
        raise DataError(f"{recipe.data}: expected a train split, found {', '.join(files)}; prepare the data anew")
    notify("loading the backbone", 0.0)
    backbone, tokenizer, format = _backbone(recipe, files["train"])
    format = recipe.context or format or ContextFormat()
    poly = PolyReply.from_backbone(backbone, tokenizer, context_format=asdict(format), **_settings(recipe))
    if recipe.model.backbone != MINI:
        poly.model.config.backbone["_name_or_path"] = Path(recipe.model.backbone).name
    notify("tokenising", 0.3)
    train = TokenCorpus.build(files["train"], poly.tokenizer, format)
    if not len(train):
        raise DataError(f"{files['train']}: expected dialogues to train on, found none; prepare the data anew")
    _check_known(train, poly.tokenizer, files["train"])
    valid = TokenCorpus.build(files["valid"], poly.tokenizer, format) if "valid" in files else None
    pad = poly.tokenizer.pad_token_id
    if recipe.precision == "float64":
        poly.model.double()
    return Setup(poly, train, valid, files.get("valid"), 0 if pad is None else int(pad))


def _check_known(train: TokenCorpus, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Raises where the tokenizer cannot read the data: T5's knows no Chinese, and would train on nothing but gaps."""
    share = 0.0 if tokenizer.unk_token_id is None else train.share_of(int(tokenizer.unk_token_id))
    if share > _MOST_UNKNOWN:
        raise DataError(
            f"{file}: expected text that the backbone's tokenizer can read, found {share:.0%} unknown tokens in its "
            f"responses; use a backbone for this language, or model.backbone={MINI}"
        )


def _settings(recipe: TrainRecipe) -> dict[str, Any]:
    """The fields of a `PolyReplyConfig`. Stage 1 is the backbone as it is: one full decoder."""
    if recipe.method == "mle":
        return {"architecture": "multi-decoder", "num_decoders": 1}
    chosen = recipe.model
    names = (
        "architecture",
        "num_decoders",
        "adapter_size",
        "adapter_sites",
        "adapter_init",
        "adapter_skip",
        "copy_embeddings",
        "prior",
    )
    changed = {"shared_weights_changed": not recipe.em.freeze_shared}
    return {**{name: getattr(chosen, name) for name in names}, **changed}


def _backbone(recipe: TrainRecipe, train_file: Path) -> tuple[Any, PreTrainedTokenizerBase, ContextFormat | None]:
    chosen, name = recipe.model, recipe.model.backbone
    torch.manual_seed(recipe.seed)  # new weights are drawn after this
    if name == MINI:
        tokenizer = _tokenizer(recipe, train_file)
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        return build_mini(chosen.mini, len(tokenizer), seed=recipe.seed, **ids), tokenizer, None
    if name == SHIPPED:
        loaded = PolyReply.from_pretrained(SHIPPED)
        return _without_adapters(loaded), loaded.tokenizer, loaded.model.config.format()
    if _is_single_decoder(name):
        if chosen.tokenizer is not None:
            raise PolyReplyError(f"{name} has a tokenizer of its own, from stage 1; leave model.tokenizer out")
        loaded = PolyReply.from_pretrained(name)
        return loaded.model.backbone, loaded.tokenizer, loaded.model.config.format()
    backbone, own = load_backbone(name, dtype="float32")
    if chosen.tokenizer is None and own is None:
        raise PolyReplyError(f"{name} holds no tokenizer; name one with model.tokenizer=…")
    return backbone, own if chosen.tokenizer is None else load_tokenizer(chosen.tokenizer), None  # type: ignore[return-value]


def _without_adapters(loaded: PolyReply) -> Any:
    """The backbone of a K-decoder model as stage 1 left it."""
    backbone: Any = new_backbone(loaded.model.config)
    backbone.load_state_dict(loaded.model.backbone.state_dict())
    return backbone


def _tokenizer(recipe: TrainRecipe, train_file: Path) -> PreTrainedTokenizerBase:
    if recipe.model.tokenizer is not None:
        return load_tokenizer(recipe.model.tokenizer)
    return train_tokenizer(texts_of(train_file), vocab_size=recipe.model.vocab_size)


def _is_single_decoder(name: str) -> bool:
    """Whether a folder is the model of a stage 1; one of stage 2 is no backbone."""
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


def sample_stream(recipe: TrainRecipe, corpus: TokenCorpus, processes: Processes) -> SampleStream:
    """Stage 1: batches of similar lengths. Stage 2: random draws, because equal lengths would hide differences."""
    place = {"seed": recipe.seed, "rank": processes.rank, "world_size": processes.size}
    if recipe.method == "mle":
        rows = recipe.optimizer.batch_rows
        return BucketedStream(corpus.context_lengths, corpus.response_lengths, rows=rows, **place)
    return DrawStream(len(corpus), size=recipe.em.e_step_size, **place)
