"""`PolyReply`: a K-decoder model with its tokenizer. One message in, K different replies out."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Unpack, overload

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from polyreply.data.context_format import ContextFormat, encode_contexts, invocation_tokens
from polyreply.data.dialogue import Dialogue
from polyreply.data.tokenizer import load_tokenizer
from polyreply.decoding.generate import GenerationOptions, check_request, way_of
from polyreply.decoding.settings import Decoding
from polyreply.errors import ModelFolderError, PolyReplyError
from polyreply.files import check_new_folder, new_folder
from polyreply.models.backbones import Dtype, backbone_tokenizer, load_backbone, quietly
from polyreply.models.config import DecoderSettings, PolyReplyConfig
from polyreply.models.model import PolyReplyModel
from polyreply.models.pretrained import check_config, read_config
from polyreply.models.reference import referenced_tokenizer
from polyreply.models.settings import BackboneIn
from polyreply.models.shipped import model_folder
from polyreply.precision import WIDE, auto_dtype
from polyreply.threads import adaptive_threads

if TYPE_CHECKING:
    from polyreply.models.card import CardFacts, Example

FASTEST, INT8 = "fastest", "int8"
"""Names of types of weights, besides PyTorch's, that `PolyReply.from_pretrained` knows."""

Context: TypeAlias = str | tuple[str, ...] | Dialogue
"""A message; or several turns, oldest first; or a dialogue, of which the context is used."""


@dataclass(frozen=True)
class Reply:
    """A reply of one decoder. For ways to decode without K decoders, `decoder` is the rank."""

    decoder: int
    text: str
    logprob: float
    """log p(text | context, decoder), summed over tokens."""


class ReplyOptions(GenerationOptions, total=False):
    """The options of `PolyReply.reply`, for code that passes them on."""

    decode: str
    """A way to decode, a name in `polyreply.decoding.generate.WAYS`."""
    k: int | None
    """Replies to each context; by default one of each decoder, or 10 for ways without K decoders."""
    m: int | None
    """Keep only the m most diverse of them."""
    seed: int
    """Decides what sampling draws."""
    batch_size: int
    """Contexts decoded together."""


class PolyReply:
    """A tokenizer and a `PolyReplyModel`, from text to text."""

    def __init__(self, model: PolyReplyModel, tokenizer: PreTrainedTokenizerBase, *, readme: str = "") -> None:
        """Pair the two; `readme` is a model card to keep."""
        vocabulary = model.backbone.get_input_embeddings().weight.shape[0]
        if len(tokenizer) > vocabulary:
            raise PolyReplyError(
                f"expected a tokenizer of at most {vocabulary} tokens, the model's vocabulary, found one of "
                f"{len(tokenizer)}; use the tokenizer the model was trained with"
            )
        self.model, self.tokenizer, self._readme = model, tokenizer, readme

    @classmethod
    def from_pretrained(
        cls,
        folder_or_name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        backbone: str | Path | None = None,
    ) -> "PolyReply":
        """Load a model folder, a model of the Hugging Face hub by its name, or a model that comes with the package.

        The package's own are `smollm2-10` and `t5-mini-10`; `shipped` is the first of them that can be loaded here.
        `backbone` is for a model that was saved without its backbone: another place to load that from.
        Weights have the type they were saved in by default; those of the package have the one that is fastest here,
        bfloat16 or float32, and so have others with the dtype `fastest`. With `int8` they are float32, and decoding
        multiplies with copies of them in eight bits: faster on a CPU, at a small loss (docs/performance.md).
        """
        folder = model_folder(folder_or_name)
        if folder != folder_or_name:
            folder_or_name, dtype = folder, dtype or FASTEST
        width = _width(folder_or_name) if dtype == FASTEST else WIDE
        weights = _dtype_of(dtype, device or "cpu", width)
        model = PolyReplyModel.from_pretrained(folder_or_name, dtype=weights, backbone=backbone)
        model.decodes_in_int8 = dtype == INT8
        if model.config.backbone_reference.get("tokenizer"):
            tokenizer = referenced_tokenizer(model)
        else:
            tokenizer = backbone_tokenizer(folder_or_name)
        if tokenizer is None:
            raise ModelFolderError(
                f"expected a tokenizer (tokenizer.json) with the weights in {folder_or_name}, found none; copy the "
                "whole folder again"
            )
        readme = Path(folder_or_name, "README.md")
        loaded = cls(model, tokenizer, readme=readme.read_text(encoding="utf-8") if readme.is_file() else "")
        return loaded if device is None else loaded.to(device)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Path | PreTrainedModel,
        tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
        *,
        dtype: Dtype | None = None,
        backbone_name: str = "",
        **settings: Unpack[DecoderSettings],
    ) -> "PolyReply":
        """K untrained decoders on a backbone, given by its name or loaded.

        `backbone_name` is what the config and the model card call it; by default the name it was loaded by.
        """
        if isinstance(backbone, str | Path):
            backbone_name = backbone_name or str(backbone)
            backbone, own_tokenizer = load_backbone(backbone, dtype=dtype)
            tokenizer = own_tokenizer if tokenizer is None else tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(tokenizer)
        if tokenizer is None:
            raise PolyReplyError("expected a tokenizer, found none with the backbone; pass one as the second argument")
        if not backbone.config.is_encoder_decoder and settings.get("adapt") != "everything":
            format = ContextFormat(**settings.get("context_format", {}))
            settings["invocation_tokens"] = invocation_tokens(tokenizer, format)
        return cls(PolyReplyModel.from_backbone(backbone, backbone_name=backbone_name, **settings), tokenizer)

    @property
    def num_decoders(self) -> int:
        """K."""
        return self.model.num_decoders

    @property
    def manners(self) -> list[str]:
        """What each decoder tends to do, in a few words for people; empty if that was not measured."""
        return list(self.model.config.manners)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def to(self, device: str | torch.device) -> "PolyReply":
        """Move the model, in place; `auto` means a GPU if there is one."""
        try:
            self.model.to(_device_named(device))  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PolyReplyError(f"cannot use the device {str(device)!r}: {reason}; use cpu or auto") from error
        return self

    @overload
    def reply(self, context: Context, **options: Unpack[ReplyOptions]) -> list[Reply]: ...

    @overload
    def reply(
        self,
        context: list[str] | list[tuple[str, ...]] | list[Dialogue] | list[Context],
        **options: Unpack[ReplyOptions],
    ) -> list[list[Reply]]: ...

    def reply(
        self,
        context: Context | list[str] | list[tuple[str, ...]] | list[Dialogue] | list[Context],
        *,
        decode: str = "decoders",
        k: int | None = None,
        m: int | None = None,
        seed: int = 0,
        batch_size: int = 16,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        no_repeat_ngram_size: int | None = None,
        repetition_penalty: float | None = None,
        guidance_scale: float | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        samples: int | None = None,
        beta: float | None = None,
        num_groups: int | None = None,
        diversity_penalty: float | None = None,
        generation_config: GenerationConfig | None = None,
    ) -> list[Reply] | list[list[Reply]]:
        """The replies to a message (a text), to several turns (a tuple or a Dialogue), or to a list of these.

        `decode` is decoders (one reply of each, or of the first k), mbr (each decoder's reply that agrees best with
        `samples` of all of them), or beam, nucleus, top-k, min-p or diverse-beam (k replies of stage 1's single-decoder
        model, by default 10). `m` keeps the m most diverse of them. `ReplyOptions` describes every option; None leaves
        it to the model's own generation config. An option that the way to decode would ignore is an error.
        """
        if batch_size < 1:
            raise PolyReplyError(f"batch_size must be 1 or more, found {batch_size}")
        options: GenerationOptions = {
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "repetition_penalty": repetition_penalty,
            "guidance_scale": guidance_scale,
            "do_sample": do_sample,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "samples": samples,
            "beta": beta,
            "num_groups": num_groups,
            "diversity_penalty": diversity_penalty,
            "generation_config": generation_config,
        }
        decoding = self.check_request(decode, k, seed, options)
        contexts = [_turns(one) for one in (context if isinstance(context, list) else [context])]
        replies: list[list[Reply]] = []
        for begin in range(0, len(contexts), batch_size):
            context_BS, mask_BS = self._encode(contexts[begin : begin + batch_size])
            with adaptive_threads():
                decoded = way_of(decode)(self.model, context_BS, mask_BS, decoding)
            for responses in decoded:
                texts = (str(self.tokenizer.decode(one.tokens, skip_special_tokens=True)) for one in responses)
                pairs = zip(responses, texts, strict=True)
                replies.append(_pick([Reply(one.decoder, text.strip(), one.logprob) for one, text in pairs], m))
        return replies if isinstance(context, list) else replies[0]

    def check_request(
        self, decode: str = "decoders", k: int | None = None, seed: int = 0, options: GenerationOptions | None = None
    ) -> Decoding:
        """Check a request before any work; what the model's generation config leaves open comes from the tokenizer."""
        decoding = check_request(self.model, decode, k, seed, options, eos=self.tokenizer.eos_token_id)
        guided = decoding.guidance_scale is not None
        return replace(decoding, empty_context=self.empty_context(self.model.config.format())) if guided else decoding

    def empty_context(self, format: ContextFormat) -> tuple[int, ...]:
        """The tokens of a context in which nothing is said, for guidance."""
        (ids,), _ = encode_contexts(self.tokenizer, [("",)], format)
        return tuple(ids.tolist())

    def _encode(self, contexts: list[tuple[str, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask of a batch, padded on the right."""
        ids, _ = encode_contexts(self.tokenizer, contexts, self.model.config.format())
        rows = [torch.from_numpy(row).long() for row in ids]
        pad = self.tokenizer.pad_token_id or 0
        context_BS = torch.nn.utils.rnn.pad_sequence(rows, True, float(pad)).to(self.device)
        length_B = torch.tensor([len(row) for row in rows], device=self.device)
        return context_BS, torch.arange(context_BS.shape[1], device=self.device) < length_B[:, None]

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        card: "CardFacts | None" = None,
        examples: Sequence[Context] = (),
        backbone: BackboneIn = "whole",
        overwrite: bool = False,
    ) -> None:
        """Save weights, configuration, tokenizer and model card to a folder that loads on its own.

        With `backbone="reference"` the backbone's weights, and its tokenizer if that is used as it is, are left out and
        found again by its name when the folder is loaded, which needs it installed or downloaded.

        The folder is complete or absent. The card is written from the model, from `card` and from the replies to
        `examples`; a loaded model that is saved with neither keeps the card it came with.
        """
        from polyreply.models.card import CardFacts, model_card

        out = Path(folder)
        check_new_folder(out, overwrite, made_by_us=_is_model_folder)
        if card is not None or examples or not self._readme:
            facts = card or CardFacts()
            shown = (*facts.examples, *self._examples(examples))
            self._readme = model_card(self.model, replace(facts, examples=shown))
        with new_folder(out, overwrite) as scratch:
            with quietly():
                self.model.save_pretrained(scratch / "out", backbone=backbone, tokenizer=self.tokenizer)
            if not self.model.config.backbone_reference.get("tokenizer"):
                self.tokenizer.save_pretrained(scratch / "out")
            (scratch / "out" / "README.md").write_text(self._readme, encoding="utf-8")

    def _examples(self, contexts: Sequence[Context]) -> "Iterator[Example]":
        from polyreply.models.card import Example

        for context, replies in zip(contexts, self.reply(list(contexts)), strict=True):
            yield Example(_turns(context), tuple(reply.text for reply in replies))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: "CardFacts | None" = None,
        examples: Sequence[Context] = (),
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a K-decoder model",
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub, as one commit; returns its address."""
        from huggingface_hub import HfApi

        hub = HfApi(token=token)
        with tempfile.TemporaryDirectory() as scratch:
            self.save_pretrained(Path(scratch, "model"), card=card, examples=examples)
            repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
            commit = hub.upload_folder(
                repo_id=repo_id,
                folder_path=Path(scratch, "model"),
                commit_message=commit_message,
                revision=revision,
                create_pr=create_pr,
            )
        return str(commit)


def _pick(replies: list[Reply], m: int | None) -> list[Reply]:
    """The m most diverse, in the order of their decoders."""
    if m is None:
        return replies
    from polyreply.decoding.select import diverse_subset

    places = diverse_subset([one.text for one in replies], m, logprobs=[one.logprob for one in replies])
    return [replies[place] for place in sorted(places)]


def _turns(context: Context) -> tuple[str, ...]:
    """The turns of a context; raises if it is not one."""
    turns = context.context if isinstance(context, Dialogue) else context
    turns = (turns,) if isinstance(turns, str) else turns
    if not isinstance(turns, tuple) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise PolyReplyError(
            f"expected a text, a tuple of turns or a Dialogue, none of them empty, found {context!r:.80}"
        )
    return turns


def _device_named(device: str | torch.device) -> str | torch.device:
    """The device for what a user names; `auto` means a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _width(name: str | Path) -> int:
    """The width of the layers of a saved model."""
    config = read_config(name)
    check_config(name, config)
    return int(PolyReplyConfig(**config).backbone_config().hidden_size)


def _dtype_of(dtype: str | torch.dtype | None, device: str | torch.device, width: int) -> str | torch.dtype | None:
    """The type of the weights for what a user names; None and "auto" mean the one they were saved in."""
    if dtype == FASTEST:
        return auto_dtype(_device_named(device), width)
    if dtype == INT8:
        return torch.float32
    if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise PolyReplyError(f"expected a dtype such as float32, bfloat16, {FASTEST} or {INT8}, found {dtype!r}")
    return dtype


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file() and read_config(folder).get("model_type") == PolyReplyConfig.model_type
