"""From a recipe to what a run works with: a model with its tokenizer, and tokenised data."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedTokenizerBase

from polyreply.baselines.adalabel import AdaLabel
from polyreply.baselines.dialogbert import DialogBertObjective
from polyreply.data.batches import BucketedStream, ContextDrawStream, DrawStream, SampleStream
from polyreply.data.context_format import ContextFormat
from polyreply.data.folder import split_files
from polyreply.data.token_corpus import TokenCorpus
from polyreply.data.tokenizer import load_tokenizer, texts_of, train_tokenizer
from polyreply.distributed import Processes
from polyreply.em.em_step import EM
from polyreply.em.objective import Objective
from polyreply.em.optimizer import DecoderOptimizer
from polyreply.em.settings import ADALABEL, DIALOGBERT
from polyreply.errors import DataError, PolyReplyError
from polyreply.models.backbones import build_mini, load_backbone, load_bert
from polyreply.models.config import DecoderSettings, PolyReplyConfig
from polyreply.models.dialogbert import MODEL_TYPE, build_dialogbert, turn_tokenizer
from polyreply.models.model import PolyReplyModel
from polyreply.models.pretrained import read_config
from polyreply.models.reference import check_reference
from polyreply.models.shipped import SHIPPED, T5_MINI_10, model_folder, shipped_folder
from polyreply.precision import auto_dtype
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
        make.pop("manners")  # for people
        return hashlib.sha256(json.dumps(make, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def start_em(self, recipe: TrainRecipe, processes: Processes) -> EM:
        """A training at its first step."""
        in_stage1 = recipe.has_one_decoder and recipe.model.stage1 == "weights"
        train_shared = in_stage1 or (not recipe.has_one_decoder and not recipe.em.freeze_shared)
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
            autocast=_autocast(recipe, self.poly.device, self.poly.model.model_size),
            objective=cast(Objective | None, self.poly.model.objective),
            processes=processes,
        )


def prepare_run(recipe: TrainRecipe, data: Path, notify: Notify = silent) -> Setup:
    """Load or build the backbone, give it K decoders, and tokenise the data (or find it in the cache)."""
    files = split_files(data)
    if "train" not in files:
        raise DataError(f"{data}: expected a train split, found {', '.join(files)}; prepare the data again")
    notify("loading the backbone", 0.0)
    start = _start(recipe, files["train"])
    format = recipe.context or start.format or ContextFormat()
    settings: DecoderSettings = {**_decoder_settings(recipe, start), "context_format": asdict(format)}
    poly = PolyReply.from_backbone(start.backbone, start.tokenizer, backbone_name=start.name, **settings)
    if start.decoders is not None:
        poly.model.load_state_dict(start.decoders.state_dict())
    elif start.stage1 is not None:
        poly.model.copy_adapter(start.stage1)
    poly.model.objective = _objective(recipe, poly)
    if recipe.model.save == "reference":
        check_reference(poly.model)  # now rather than after the training
    notify("tokenising", 0.3)
    train = TokenCorpus.build(files["train"], poly.tokenizer, format)
    if not len(train):
        raise DataError(f"{files['train']}: expected dialogues to train on, found none; prepare the data again")
    _check_known(train, poly.tokenizer, files["train"])
    valid = TokenCorpus.build(files["valid"], poly.tokenizer, format) if "valid" in files else None
    if recipe.precision == "float64":
        poly.model.double()
    return Setup(poly, train, valid, files.get("valid"))


def _objective(recipe: TrainRecipe, poly: PolyReply) -> Objective | None:
    """What a method minimises in place of the NLL."""
    if recipe.method == ADALABEL:
        return AdaLabel(poly.model, recipe.adalabel, poly.tokenizer.pad_token_id)
    if recipe.method == DIALOGBERT:
        return DialogBertObjective(poly.model, recipe.dialogbert)
    return None


def _check_known(train: TokenCorpus, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Raise if the tokenizer cannot read the data: T5's has no Chinese and would train on unknown tokens only."""
    share = 0.0 if tokenizer.unk_token_id is None else train.share_of(int(tokenizer.unk_token_id))
    if share > _MOST_UNKNOWN:
        raise DataError(
            f"{file}: expected text that the backbone's tokenizer can read, found {share:.0%} unknown tokens in its "
            f"responses; use a backbone for this language, or model.backbone={MINI}"
        )


def _decoder_settings(recipe: TrainRecipe, start: "_Start") -> DecoderSettings:
    """How the backbone gets its decoders. Stage 1 is the backbone as it is, one full decoder, or has one adapter."""
    if recipe.has_one_decoder and recipe.model.stage1 == "weights":
        return {"architecture": "multi-decoder", "num_decoders": 1}
    chosen = {name: value for name, value in asdict(recipe.model).items() if name not in _NOT_OF_DECODERS}
    if recipe.has_one_decoder:
        return cast(DecoderSettings, {**chosen, "num_decoders": 1, "prior": "uniform", "single_adapter": 0})
    chosen["shared_weights_changed"] = not recipe.em.freeze_shared
    if start.decoders is not None:  # they are trained further, so they stay as they are
        config = start.decoders.config
        chosen |= {name: getattr(config, name) for name in (*_OF_ADAPTERS, *_OF_MODEL)}
        chosen["shared_weights_changed"] |= config.shared_weights_changed
    elif start.stage1 is not None:  # its adapter becomes K, so they have its shape
        if recipe.model.architecture != "multi-adapter":
            raise PolyReplyError(
                f"expected architecture multi-adapter on {recipe.model.backbone}, whose stage 1 trained an adapter, "
                f"found {recipe.model.architecture}; use a stage 1 with model.stage1=weights"
            )
        chosen |= {name: getattr(start.stage1.config, name) for name in _OF_ADAPTERS}
        chosen["single_adapter"] = recipe.model.num_decoders
    return cast(DecoderSettings, chosen)


_NOT_OF_DECODERS = ("backbone", "mini", "tokenizer", "vocab_size", "stage1", "save", "shard")
"""Fields of a recipe's `model` that are not about its decoders."""
_OF_ADAPTERS = ("adapter", "adapt", "lora", "adapter_size", "adapter_activation", "adapter_sites", "adapter_skip")
"""What stage 2 takes over from a stage 1 that trained an adapter."""
_OF_MODEL = ("architecture", "copy_embeddings", "prior", "single_adapter")
"""What it takes over as well from a K-decoder model that is trained further."""


class _Start(NamedTuple):
    """What a run begins with."""

    name: str
    """What the backbone is called."""
    backbone: Any
    tokenizer: PreTrainedTokenizerBase
    format: ContextFormat | None = None
    """The format of contexts that stage 1 was trained with."""
    stage1: PolyReplyModel | None = None
    """The model of stage 1, if that trained an adapter."""
    decoders: PolyReplyModel | None = None
    """A K-decoder model that is trained further."""


def _start(recipe: TrainRecipe, train_file: Path) -> _Start:
    """Load or build the backbone, its tokenizer, and what stage 1 left."""
    chosen, name = recipe.model, recipe.model.backbone
    torch.manual_seed(recipe.seed)  # new weights are drawn after this
    if recipe.method == DIALOGBERT and not _is_kdecoder_model(name):
        return _start_dialogbert(recipe, train_file)
    if name == MINI:
        tokenizer = _mini_tokenizer(recipe, train_file)
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        return _Start(name, build_mini(chosen.mini, len(tokenizer), seed=recipe.seed, **ids), tokenizer)
    if name == SHIPPED:
        loaded = PolyReply.from_pretrained(shipped_folder(T5_MINI_10), dtype=torch.float32)
        return _Start(name, loaded.model.plain_backbone(), loaded.tokenizer, loaded.model.config.format())
    if _is_kdecoder_model(name):
        if chosen.tokenizer is not None:
            raise PolyReplyError(f"{name} has a tokenizer of its own, from stage 1; leave model.tokenizer out")
        return _start_from_model(recipe, PolyReply.from_pretrained(name))
    backbone, own = load_backbone(name, dtype="float32")
    tokenizer_or_none = own if chosen.tokenizer is None else load_tokenizer(chosen.tokenizer)
    if tokenizer_or_none is None:
        raise PolyReplyError(f"{name} holds no tokenizer; name one with model.tokenizer=…")
    return _Start(name, backbone, tokenizer_or_none)


def _mini_tokenizer(recipe: TrainRecipe, train_file: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that a recipe names, or one trained on the data, for dialogbert with the tokens that turns need."""
    chosen = recipe.model
    if chosen.tokenizer is not None:
        return load_tokenizer(chosen.tokenizer)
    trained = train_tokenizer(texts_of(train_file), vocab_size=chosen.vocab_size)
    if recipe.method == DIALOGBERT:
        trained.add_special_tokens({"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"})
    return trained


def _start_dialogbert(recipe: TrainRecipe, train_file: Path) -> "_Start":
    """DialogBERT's network from scratch, or around a pretrained utterance encoder."""
    chosen, name, settings = recipe.model, recipe.model.backbone, recipe.dialogbert
    bert: Any = chosen.mini
    if name == MINI:
        tokenizer: PreTrainedTokenizerBase | None = _mini_tokenizer(recipe, train_file)
    else:
        bert, own = load_bert(name)
        tokenizer = own if chosen.tokenizer is None else load_tokenizer(chosen.tokenizer)
    if tokenizer is None:
        raise PolyReplyError(f"{name} holds no tokenizer; name one with model.tokenizer=…")
    turns = {"max_turns": settings.max_turns, "max_turn_tokens": settings.max_turn_tokens}
    tokenizer = turn_tokenizer(tokenizer, chosen.tokenizer or name)
    return _Start(name, build_dialogbert(tokenizer, bert, seed=recipe.seed, **turns), tokenizer)


def _is_kdecoder_model(name: str) -> bool:
    """Whether a name means a model of ours, of stage 1 or 2."""
    folder = model_folder(name)
    if not Path(folder, "config.json").is_file():
        return False
    return bool(read_config(folder).get("model_type") == PolyReplyConfig.model_type)


def _start_from_model(recipe: TrainRecipe, loaded: PolyReply) -> _Start:
    """Begin with the model of a stage 1, or train the decoders of a stage 2 (or of imported LoRAs) further."""
    model, config, name = loaded.model, loaded.model.config, recipe.model.backbone
    if recipe.method == DIALOGBERT and config.backbone["model_type"] != MODEL_TYPE:
        raise PolyReplyError(
            f"method dialogbert expected its own model in {name}, found one on {config.backbone['model_type']}; use a "
            "BERT as utterance encoder, or model.backbone=mini"
        )
    if config.num_decoders == 1 and config.architecture == "multi-decoder":
        return _Start(name, model.backbone, loaded.tokenizer, config.format())
    start = _Start(model.backbone_source or config.backbone_name, model.plain_backbone(), loaded.tokenizer)
    start = start._replace(format=config.format())
    if config.single_adapter == 0:
        return start._replace(stage1=model)
    if recipe.has_one_decoder:
        raise PolyReplyError(
            f"expected in {name} a backbone or the model of stage 1, found a model of stage 2 with "
            f"{config.num_decoders} decoders; train it further by an EM method, or name the model folder of stage 1"
        )
    if recipe.model.num_decoders != config.num_decoders:
        raise PolyReplyError(
            f"expected model.num_decoders={config.num_decoders}, the number of decoders in {name}, to train them "
            f"further, found {recipe.model.num_decoders}; set it, or name the model folder of stage 1"
        )
    return start._replace(decoders=model)


def _autocast(recipe: TrainRecipe, device: torch.device, width: int) -> torch.dtype | None:
    """The type of the computation where it differs from the weights'; log-likelihoods stay in float32."""
    chosen = auto_dtype(device, width) if recipe.precision == "auto" else getattr(torch, recipe.precision)
    return torch.bfloat16 if chosen == torch.bfloat16 else None


def _stream(recipe: TrainRecipe, corpus: TokenCorpus, processes: Processes) -> SampleStream:
    """Stage 1: batches of similar lengths. Stage 2: random draws, because equal lengths would hide differences."""
    place = {"seed": recipe.seed, "rank": processes.rank, "world_size": processes.size}
    if recipe.has_one_decoder:
        rows = recipe.optimizer.batch_rows
        return BucketedStream(corpus.context_lengths, corpus.response_lengths, rows=rows, **place)
    if recipe.em.draw_by == "contexts":
        return ContextDrawStream(corpus.context_of, size=recipe.em.e_step_size, **place)
    return DrawStream(len(corpus), size=recipe.em.e_step_size, **place)
