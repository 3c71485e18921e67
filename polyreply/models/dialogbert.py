"""DialogBERT's network (Gu, Yoo and Ha, 2021) as a backbone: it reads a context turn by turn.

An utterance encoder (BERT) makes a vector of each turn, its pooled output. A context encoder (another BERT) reads the
vectors of all turns between those of two pseudo-utterances, CLS and SEP. The decoder attends to the context encoder's
states, one for each turn, and never sees the tokens of a context.

Contexts arrive as one sequence of tokens, as for every backbone; tokens that end a turn (`turn_end_ids`) say where to
split it. So data, scoring, decoding, saving and loading are those of any encoder-decoder model.

Legend: B contexts, S context tokens, U turns, L tokens of a turn, X turns of all contexts, C turns and the two
pseudo-utterances, D model size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertConfig,
    BertModel,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.bart.modeling_bart import BartDecoder

from polyreply.data.tokenizer import TURN
from polyreply.errors import PolyReplyError
from polyreply.models.backbones import MiniConfig

MODEL_TYPE = "dialogbert"
_MOST_RESPONSE_TOKENS = 512
_SPECIAL_TOKENS = ("cls_token", "sep_token", "mask_token", "pad_token")


@strict
class DialogBertConfig(BartConfig):
    """Sizes of the decoder (as BART's), the utterance encoder's configuration, and how a context is split."""

    model_type = MODEL_TYPE

    bert: dict[str, Any] | None = None
    """The configuration of the utterance encoder; the context encoder has the same sizes."""
    cls_token_id: int = 0
    """Begins every turn, and is the decoder's start token."""
    sep_token_id: int = 0
    """Ends every turn."""
    mask_token_id: int = 0
    """The only token of a masked turn."""
    turn_end_ids: list[int] | None = None
    """Tokens that end a turn in a context."""
    max_turns: int = 7
    """Most turns of a context; the oldest are dropped."""
    max_turn_tokens: int = 30
    """Most tokens of a turn, CLS and SEP included; the rest of a turn is cut."""


@dataclass(frozen=True)
class Turns:
    """The turns of contexts, each between CLS and SEP, padded on the right."""

    tokens_BUL: Tensor
    mask_BUL: Tensor
    count_B: Tensor
    """Turns of each context, 1 or more."""

    @property
    def mask_BU(self) -> Tensor:
        """Which turns there are."""
        return torch.arange(self.tokens_BUL.shape[1], device=self.count_B.device) < self.count_B[:, None]

    def select(self, index: Tensor) -> "Turns":
        """The turns of some contexts."""
        return Turns(self.tokens_BUL[index], self.mask_BUL[index], self.count_B[index])


@dataclass
class TurnStates(BaseModelOutput):
    """The context encoder's states (B, C, D), and which of them there are."""

    mask_BC: Tensor | None = None


class TurnEncoder(nn.Module):
    """Utterance encoder and context encoder."""

    main_input_name = "input_ids"

    def __init__(self, config: DialogBertConfig) -> None:
        super().__init__()
        self.config = config
        bert = BertConfig(**(config.bert or {}))
        self.utterance = BertModel(bert)
        self.context = BertModel(BertConfig(**{**(config.bert or {}), "vocab_size": 1}), add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> TurnStates:
        """Read contexts (B, S)."""
        return self.encode(self.split(input_ids, attention_mask))

    def split(self, context_BS: Tensor, mask_BS: Tensor) -> Turns:
        """Cut contexts into their last turns, and these to their first tokens."""
        config = self.config
        is_end_BS = torch.isin(context_BS, torch.tensor(config.turn_end_ids, device=context_BS.device)) & mask_BS.bool()
        is_text_BS = mask_BS.bool() & ~is_end_BS & (context_BS != config.cls_token_id)
        count_B = is_end_BS.sum(1)
        turn_BS = is_end_BS.cumsum(1) - is_end_BS.long()
        texts_before_BS = is_text_BS.cumsum(1) - is_text_BS.long()
        first_BU = torch.zeros_like(context_BS).scatter_reduce(
            1, turn_BS, texts_before_BS, "amin", include_self=False
        )  # how many text tokens come before each turn
        place_BS = texts_before_BS - first_BU.gather(1, turn_BS)
        turn_BS = turn_BS - (count_B - config.max_turns).clamp(min=0)[:, None]
        kept_BS = is_text_BS & (turn_BS >= 0) & (place_BS < config.max_turn_tokens - 2)
        return self._frame(context_BS, kept_BS, turn_BS, place_BS, count_B.clamp(max=config.max_turns))

    def _frame(self, context_BS: Tensor, kept_BS: Tensor, turn_BS: Tensor, place_BS: Tensor, count_B: Tensor) -> Turns:
        """Put each kept token at its place in its turn, between CLS and SEP."""
        row_BS = torch.arange(len(context_BS), device=context_BS.device)[:, None].expand_as(context_BS)
        shape = (len(context_BS), int(count_B.max()))
        length_BU = torch.zeros(shape, dtype=torch.long, device=context_BS.device)
        length_BU.index_put_((row_BS[kept_BS], turn_BS[kept_BS]), torch.ones_like(context_BS[kept_BS]), accumulate=True)
        tokens_BUL = context_BS.new_full((*shape, int(length_BU.max()) + 2), int(self.config.pad_token_id or 0))
        tokens_BUL[..., 0] = self.config.cls_token_id
        tokens_BUL[row_BS[kept_BS], turn_BS[kept_BS], place_BS[kept_BS] + 1] = context_BS[kept_BS]
        tokens_BUL.scatter_(2, length_BU[..., None] + 1, self.config.sep_token_id)
        mask_BUL = torch.arange(tokens_BUL.shape[2], device=context_BS.device) < length_BU[..., None] + 2
        turns = Turns(tokens_BUL, mask_BUL, count_B)
        return Turns(tokens_BUL, mask_BUL & turns.mask_BU[..., None], count_B)

    def encode(self, turns: Turns) -> TurnStates:
        """The context encoder's states of turns; the pseudo-utterances are read once for all contexts."""
        cls, sep = self.config.cls_token_id, self.config.sep_token_id
        is_turn_BU = turns.mask_BU
        tokens_XL, mask_XL = turns.tokens_BUL[is_turn_BU], turns.mask_BUL[is_turn_BU]
        pseudo = tokens_XL.new_tensor([[cls, cls, sep], [cls, sep, sep]])
        missing = max(0, 3 - tokens_XL.shape[1])
        tokens_XL, mask_XL = (nn.functional.pad(x, (0, missing)) for x in (tokens_XL, mask_XL))
        pseudo_2L = nn.functional.pad(pseudo, (0, tokens_XL.shape[1] - 3), value=int(self.config.pad_token_id or 0))
        is_pseudo_2L = torch.arange(tokens_XL.shape[1], device=tokens_XL.device).expand_as(pseudo_2L) < 3
        vector_XD = self.pooled(torch.cat([pseudo_2L, tokens_XL]), torch.cat([is_pseudo_2L, mask_XL]))
        size, (rows, columns) = vector_XD.shape[-1], is_turn_BU.shape
        vector_BCD = vector_XD.new_zeros(rows, columns + 2, size)
        is_turn_BC = nn.functional.pad(is_turn_BU, (1, 1))
        vector_BCD = vector_BCD.masked_scatter(is_turn_BC[..., None], vector_XD[2:])
        place_C = torch.arange(columns + 2, device=is_turn_BU.device)
        vector_BCD = torch.where((place_C == 0)[None, :, None], vector_XD[0], vector_BCD)
        is_last_BC = place_C == turns.count_B[:, None] + 1
        vector_BCD = torch.where(is_last_BC[..., None], vector_XD[1], vector_BCD)
        mask_BC = place_C < turns.count_B[:, None] + 2
        states_BCD = self.context(inputs_embeds=vector_BCD, attention_mask=mask_BC.long()).last_hidden_state
        return TurnStates(last_hidden_state=states_BCD, mask_BC=mask_BC)

    def pooled(self, tokens_XL: Tensor, mask_XL: Tensor) -> Tensor:
        """The utterance encoder's vector of each turn, (X, D)."""
        vector_XD: Tensor = self.utterance(input_ids=tokens_XL, attention_mask=mask_XL.long()).pooler_output
        return vector_XD


class DialogBert(PreTrainedModel, GenerationMixin):
    """The network as an ordinary encoder-decoder model of Transformers."""

    config_class = DialogBertConfig
    config: DialogBertConfig
    base_model_prefix = "dialogbert"
    main_input_name = "input_ids"
    _tied_weights_keys = {"lm_head.weight": "decoder.embed_tokens.weight"}  # noqa: RUF012 – declared by Transformers
    _supports_sdpa = True

    def __init__(self, config: DialogBertConfig) -> None:
        super().__init__(config)
        self.encoder = TurnEncoder(config)
        self.decoder = BartDecoder(config)
        self.lm_head = nn.Linear(int(config.d_model or 0), config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The decoder's embedding; the utterance encoder has its own."""
        embedding: nn.Module = self.decoder.embed_tokens
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        """The output layer, which is the decoder's embedding."""
        head: nn.Module = self.lm_head
        return head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next tokens; with `encoder_outputs`, `attention_mask` is that of their turns."""
        if encoder_outputs is None:
            assert input_ids is not None
            mask_BS = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            encoder_outputs = self.encoder(input_ids, mask_BS)
            attention_mask = encoder_outputs.mask_BC.long()
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        return Seq2SeqLMOutput(logits=self.lm_head(decoded.last_hidden_state), past_key_values=decoded.past_key_values)


def turn_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """The tokenizer with SEP as end of sequence, if it has none; raises without the special tokens that turns need."""
    missing = [token for token in _SPECIAL_TOKENS if getattr(tokenizer, token) is None]
    if missing:
        raise PolyReplyError(
            f"method dialogbert expected a tokenizer with {', '.join(_SPECIAL_TOKENS)}, such as BERT's, found in "
            f"{name} one without {', '.join(missing)}; name another with model.tokenizer=…, or leave it out with "
            "model.backbone=mini, which trains one"
        )
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    return tokenizer


def build_dialogbert(
    tokenizer: PreTrainedTokenizerBase,
    utterance_encoder: BertModel | MiniConfig,
    *,
    max_turns: int = 7,
    max_turn_tokens: int = 30,
    seed: int = 0,
) -> DialogBert:
    """A network in eval mode: around a pretrained utterance encoder, or from scratch in the given sizes.

    The same arguments give the same weights, whatever the state of torch's random numbers, which is left unchanged.
    """
    bert = _bert_config(utterance_encoder, len(tokenizer), int(tokenizer.pad_token_id))
    layers = bert.num_hidden_layers
    if isinstance(utterance_encoder, MiniConfig):
        layers = utterance_encoder.num_decoder_layers
    turn = tokenizer.get_added_vocab().get(TURN)
    ends = {turn, tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    make: Any = DialogBertConfig  # its signature leaves out the settings that all configurations have
    config = make(
        vocab_size=bert.vocab_size,
        d_model=bert.hidden_size,
        encoder_layers=layers,  # nothing is built by these two, but `generate` sizes its cache by the first
        encoder_attention_heads=bert.num_attention_heads,
        decoder_layers=layers,
        decoder_attention_heads=bert.num_attention_heads,
        decoder_ffn_dim=bert.intermediate_size,
        dropout=bert.hidden_dropout_prob,
        attention_dropout=bert.attention_probs_dropout_prob,
        max_position_embeddings=_MOST_RESPONSE_TOKENS,
        bert=bert.to_diff_dict(),
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
        turn_end_ids=sorted(ends),
        max_turns=max_turns,
        max_turn_tokens=max_turn_tokens,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
        forced_eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = DialogBert(config)
    if isinstance(utterance_encoder, BertModel):
        made.encoder.utterance.load_state_dict(utterance_encoder.state_dict())
    return made.eval()  # type: ignore[no-any-return]


def _bert_config(utterance_encoder: BertModel | MiniConfig, vocab_size: int, pad_token_id: int) -> BertConfig:
    if isinstance(utterance_encoder, BertModel):
        return utterance_encoder.config
    mini, make = utterance_encoder, BertConfig
    if mini.d_model % mini.num_heads:
        raise PolyReplyError(
            f"method dialogbert expected model.mini.num_heads to divide d_model {mini.d_model}, found "
            f"{mini.num_heads}; use another number"
        )
    return make(
        vocab_size=vocab_size,
        hidden_size=mini.d_model,
        num_hidden_layers=mini.num_layers,
        num_attention_heads=mini.num_heads,
        intermediate_size=mini.d_ff,
        hidden_dropout_prob=mini.dropout,
        attention_probs_dropout_prob=mini.dropout,
        pad_token_id=pad_token_id,
    )


AutoConfig.register(MODEL_TYPE, DialogBertConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(DialogBertConfig, DialogBert, exist_ok=True)
