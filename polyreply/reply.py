"""`PolyReply`: a K-decoder model with its tokenizer. One message in, K different replies out."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, overload

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from polyreply.data.context_format import encode_contexts
from polyreply.data.dialogue import Dialogue
from polyreply.data.tokenizer import load_tokenizer
from polyreply.decoding.generate import Decode, How, how_to_decode, respond
from polyreply.errors import ModelFolderError, PolyReplyError
from polyreply.files import check_new_folder, new_folder
from polyreply.models.backbones import Dtype, backbone_tokenizer, load_backbone
from polyreply.models.card import CardFacts, Example, backbone_name, model_card
from polyreply.models.config import PolyReplyConfig
from polyreply.models.loading import quietly
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.pretrained import read_config
from polyreply.models.shipped import SHIPPED, shipped_folder

Context: TypeAlias = str | tuple[str, ...] | Dialogue
"""A message; or several turns, oldest first; or a dialogue, of which the context is taken."""


@dataclass(frozen=True)
class Reply:
    """What one decoder says. `decoder` is the place in the result for ways to decode without K decoders."""

    decoder: int
    text: str
    logprob: float
    """log p(text | context, decoder), summed over tokens."""


class PolyReply:
    """A tokenizer and a `PolyReplyModel`, from text to text."""

    def __init__(self, model: PolyReplyModel, tokenizer: PreTrainedTokenizerBase, *, readme: str = "") -> None:
        """Pairs the two; `readme` is a model card to keep."""
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
    ) -> "PolyReply":
        """Loads a model folder, a model of the Hugging Face hub by its name, or `shipped`, the package's own.

        Weights keep the type they were saved in, unless `dtype` says otherwise; the shipped ones become float32.
        """
        if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise PolyReplyError(f"expected a dtype such as float32 or bfloat16, found {dtype!r}")
        if folder_or_name == SHIPPED:
            folder_or_name, dtype = shipped_folder(), dtype or torch.float32
        model = PolyReplyModel.from_pretrained(folder_or_name, dtype=dtype)
        tokenizer = backbone_tokenizer(folder_or_name)
        if tokenizer is None:
            raise ModelFolderError(
                f"expected a tokenizer (tokenizer.json) beside the weights in {folder_or_name}, found none; copy the "
                "folder again, whole"
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
        **settings: Any,
    ) -> "PolyReply":
        """K untrained decoders on a backbone, by its name or loaded; the settings are those of `PolyReplyConfig`."""
        name = str(backbone) if isinstance(backbone, str | Path) else None
        if isinstance(backbone, str | Path):
            backbone, found = load_backbone(backbone, dtype=dtype)
            tokenizer = found if tokenizer is None else tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(tokenizer)
        if tokenizer is None:
            raise PolyReplyError("expected a tokenizer, found none with the backbone; pass one as the second argument")
        model = PolyReplyModel.from_backbone(backbone, **settings)
        if name is not None:
            model.config.backbone["_name_or_path"] = name
        model.config.backbone["_name_or_path"] = backbone_name(model)  # a folder's path means nothing elsewhere
        return cls(model, tokenizer)

    @property
    def num_decoders(self) -> int:
        """K."""
        return self.model.num_decoders

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def to(self, device: str | torch.device) -> "PolyReply":
        """Moves the model, in place; `auto` means a GPU if there is one."""
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            self.model.to(chosen)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PolyReplyError(f"cannot use the device {str(device)!r}: {reason}; use cpu or auto") from error
        return self

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        card: CardFacts | None = None,
        examples: Sequence[Context] = (),
        overwrite: bool = False,
    ) -> None:
        """Saves a folder that loads alone, complete or not at all: weights, configuration, tokenizer, model card.

        The card is written from the model, from `card` and from the replies to `examples`; a loaded model that is
        saved with neither keeps the card it came with.
        """
        out = Path(folder)
        check_new_folder(out, overwrite, made_by_us=_is_model_folder)
        if card is not None or examples or not self._readme:
            facts = card or CardFacts()
            self._readme = model_card(self.model, replace(facts, examples=(*facts.examples, *self._said(examples))))
        with new_folder(out, overwrite) as scratch:
            with quietly():
                self.model.save_pretrained(scratch / "out")
            self.tokenizer.save_pretrained(scratch / "out")
            (scratch / "out" / "README.md").write_text(self._readme, encoding="utf-8")

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: CardFacts | None = None,
        examples: Sequence[Context] = (),
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a K-decoder model",
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Uploads what `save_pretrained` writes to the Hugging Face hub, as one commit; returns its address."""
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

    @overload
    def reply(self, context: Context, **options: Any) -> list[Reply]: ...

    @overload
    def reply(self, context: list[Any], **options: Any) -> list[list[Reply]]: ...

    def reply(
        self,
        context: Context | list[Any],
        *,
        decode: Decode = "decoders",
        k: int | None = None,
        m: int | None = None,
        seed: int = 0,
        batch_size: int = 16,
        **generation: Any,
    ) -> list[Reply] | list[list[Reply]]:
        """The replies to a message (a text), to several turns (a tuple or a Dialogue), or to a list of these.

        `decode` is decoders (one reply of each, or of the first k), mbr (each decoder says what agrees best with
        `samples` of all of them), beam, nucleus or diverse-beam (k replies of the shared weights with adapters off; 10
        unless told). `m` picks the m most diverse of them. Other options are fields of a GenerationConfig, such as
        max_new_tokens, do_sample, temperature, top_p, no_repeat_ngram_size, and go on top of the model's own; `seed`
        decides what sampling draws.
        """
        if batch_size < 1:
            raise PolyReplyError(f"batch_size must be 1 or more, found {batch_size}")
        how = how_to_decode(self.model, decode, k, seed, generation, eos=self.tokenizer.eos_token_id)
        contexts = [_turns(one) for one in (context if isinstance(context, list) else [context])]
        batches = [contexts[begin : begin + batch_size] for begin in range(0, len(contexts), batch_size)]
        found = [_pick(replies, m) for batch in batches for replies in self._batch(batch, how)]
        return found if isinstance(context, list) else found[0]

    def _batch(self, contexts: list[tuple[str, ...]], how: How) -> Iterator[list[Reply]]:
        ids, _ = encode_contexts(self.tokenizer, contexts, self.model.config.format())
        rows = [torch.from_numpy(row).long() for row in ids]
        pad = self.tokenizer.pad_token_id or 0
        context_BS = torch.nn.utils.rnn.pad_sequence(rows, True, float(pad)).to(self.device)
        length_B = torch.tensor([len(row) for row in rows], device=self.device)
        mask_BS = torch.arange(context_BS.shape[1], device=self.device) < length_B[:, None]
        for responses in respond(self.model, context_BS, mask_BS, how):
            yield [Reply(one.decoder, self._text(one.tokens), one.logprob) for one in responses]

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _said(self, examples: Sequence[Context]) -> Iterator[Example]:
        for context in examples:
            yield Example(_turns(context), tuple(reply.text for reply in self.reply(context)))


def _pick(replies: list[Reply], m: int | None) -> list[Reply]:
    """The m most diverse, in the order of their decoders."""
    if m is None:
        return replies
    from polyreply.decoding.select import diverse_subset

    places = diverse_subset([one.text for one in replies], m, logprobs=[one.logprob for one in replies])
    return [replies[place] for place in sorted(places)]


def _turns(context: Context) -> tuple[str, ...]:
    """The turns of a context, or an error if it is none."""
    turns = context.context if isinstance(context, Dialogue) else context
    turns = (turns,) if isinstance(turns, str) else turns
    if not isinstance(turns, tuple) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise PolyReplyError(
            f"expected a text, a tuple of turns or a Dialogue, none of them empty, found {context!r:.80}"
        )
    return turns


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file() and read_config(folder).get("model_type") == PolyReplyConfig.model_type
