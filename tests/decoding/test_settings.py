"""A GenerationConfig field by field: honoured as `generate` does, refused, or left behind with the backbone."""

import json

import pytest
import tiny
import torch
from pair import SENTENCES, pair, tokenizer
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

from polyreply import PolyReply, PolyReplyModel
from polyreply.decoding import all_decoders, single_decoder
from polyreply.decoding.settings import Decoding
from polyreply.errors import PolyReplyError
from polyreply.models.backbones import load_backbone
from polyreply.models.pretrained import without_beam_search

BEGIN, END = 9, 17
"""Tokens that the tiny models would not choose by themselves."""
BART = {
    "early_stopping": True,
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 1,
    "length_penalty": 2.0,
    "max_length": 14,
    "min_length": 5,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
}
"""What a BART for summaries is published with, at the size of the tests."""


def config(**settings):
    ids = {"eos_token_id": [tiny.EOS, END], "pad_token_id": tiny.PAD}
    return GenerationConfig(**{"max_new_tokens": 6, **ids, **settings})


def decode(model, context, mask, options=None):
    request = Decoding.of(options or model.generation_config, model.num_decoders)
    return all_decoders.decode(model, context, mask, request)


def generated(model, samples, k, options):
    """What `generate` says with decoder k, one context at a time."""
    found = []
    for context, mask in zip(samples.context_NS, samples.context_mask_NS, strict=True):
        context = context[mask][None]
        with model.as_decoder(k) as backbone, torch.no_grad():
            rows = backbone.generate(context, attention_mask=torch.ones_like(context), generation_config=options)
        tokens = rows[0, 1 if model.family.encoder else context.shape[1] :].tolist()
        end = next((place for place, token in enumerate(tokens) if token in (tiny.EOS, END)), len(tokens))
        found.append(tokens[: end + 1])
    return found


def said(model, samples, options):
    """The same from `decode`: one context at a time, because constraints see the padding of a decoder-only prompt."""
    parts = [samples.select(torch.tensor([row])) for row in range(len(samples))]
    return [decode(model, part.context_NS, part.context_mask_NS, options)[0] for part in parts]


FORCED = [
    {"forced_bos_token_id": BEGIN},
    {"forced_eos_token_id": END},
    {"forced_eos_token_id": [END, tiny.EOS]},
    {"forced_bos_token_id": BEGIN, "forced_eos_token_id": END, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5},
    {"forced_eos_token_id": END, "max_new_tokens": None, "max_length": 12},
    # Transformers forces the end after it forbids an early one, but suppresses tokens after that.
    {"forced_eos_token_id": END, "min_new_tokens": 20},
    {"forced_eos_token_id": [END, END + 1], "suppress_tokens": [END]},
    {"forced_bos_token_id": BEGIN, "bad_words_ids": [[BEGIN], [7]]},
]


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("name", tiny.BACKBONES)
@pytest.mark.parametrize("settings", FORCED, ids=lambda settings: "-".join(settings))
def test_forced_tokens_are_those_of_generate(name, settings):
    model, samples = tiny.model(name), tiny.samples()
    replies = said(model, samples, config(**settings))
    for k in range(model.num_decoders):
        assert [row[k].tokens for row in replies] == generated(model, samples, k, config(**settings))
    together = decode(model, samples.context_NS, samples.context_mask_NS, config(**settings))
    if model.family.encoder:
        assert [[one.tokens for one in row] for row in together] == [[one.tokens for one in row] for row in replies]


@pytest.mark.parametrize("way", [{}, {"do_sample": True}], ids=["greedy", "sampled"])
def test_forced_tokens_are_first_and_last(way):
    model, samples = tiny.model("bart"), tiny.samples()
    given = (samples.context_NS, samples.context_mask_NS)
    forced = config(forced_bos_token_id=BEGIN, forced_eos_token_id=END, **way)
    [free, bound] = (decode(model, *given, options) for options in (config(**way), forced))
    assert {one.tokens[0] for row in bound for one in row} == {BEGIN} != {one.tokens[0] for row in free for one in row}
    assert {one.tokens[-1] for row in bound for one in row if len(one.tokens) == 6} == {END}
    assert all(torch.isfinite(torch.tensor(one.logprob)) and one.logprob < 0 for row in bound for one in row)


def test_beam_search_forces_the_same_tokens():
    model, samples = tiny.model("bart"), tiny.samples()
    options = config(forced_bos_token_id=BEGIN, forced_eos_token_id=END)
    request = Decoding.of(options, 4)
    replies = single_decoder.beam(model, samples.context_NS, samples.context_mask_NS, request)
    assert {one.tokens[0] for row in replies for one in row} == {BEGIN}
    assert {one.tokens[-1] for row in replies for one in row} <= {END, tiny.EOS}


@pytest.mark.parametrize(
    "lengths, least",
    [
        ({"min_new_tokens": 4}, 4),
        ({"min_length": 9}, 6),
        ({"min_length": 2}, None),
        ({"min_length": 9, "min_new_tokens": 4}, 4),
        ({"min_length": 9, "min_new_tokens": 0}, None),
    ],
    ids=str,
)
def test_the_minimum_length_is_that_of_transformers(lengths, least):
    constraints = Decoding.of(config(**lengths), 1).constraints(3)
    assert [one.min_new_tokens for one in constraints] == ([] if least is None else [least])


@pytest.mark.parametrize("name", ["num_beams", "length_penalty", "num_return_sequences", "num_beam_groups"])
def test_beam_search_settings_are_refused(name):
    made, given = pair(), config()
    setattr(given, name, 3)
    with pytest.raises(PolyReplyError, match=f"not supported here: {name}; remove them"):
        Decoding.of(given, 1)
    with pytest.raises(PolyReplyError, match=f"not supported here: {name}"):
        made.reply(SENTENCES[0], generation_config=given)
    made.model.generation_config = given
    with pytest.raises(PolyReplyError, match=f"not supported here: {name}"):
        made.reply(SENTENCES[0])


# --- what comes with a backbone


def bart():
    torch.manual_seed(3)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    widths = {"d_model": 12, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 5, "decoder_start_token_id": 1}
    config = BartConfig(vocab_size=len(tokenizer()), forced_eos_token_id=1, **sizes, **widths, **ids)
    return BartForConditionalGeneration(config).eval()


def published(folder, **settings):
    """A folder as it is on the hub, with these settings in its generation config."""
    bart().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def plain(settings):
    beams = ("num_beams", "length_penalty", "early_stopping")
    return {name: value for name, value in settings.items() if name not in beams}


def test_a_backbone_made_for_beam_search_replies(tmp_path):
    made = PolyReply.from_backbone(published(tmp_path / "bart", **BART), num_decoders=2)
    kept = {name: getattr(made.model.generation_config, name) for name in BART}
    assert kept == {**dict.fromkeys(BART), **plain(BART)}
    replies = made.reply(SENTENCES[0])
    assert replies == made.reply(SENTENCES[0], generation_config=GenerationConfig(**plain(BART))) and len(replies) == 2
    ids = tokenizer()(SENTENCES[0], return_tensors="pt").input_ids
    [responses] = decode(made.model, ids, torch.ones_like(ids))
    for k, response in enumerate(responses):
        with made.model.as_decoder(k) as backbone, torch.no_grad():
            [tokens] = backbone.generate(ids).tolist()
        assert response.tokens == tokens[1:]
        assert response.tokens[0] == 5 and 5 <= len(response.tokens) <= 13 and response.tokens[-1] == 1
    assert len(made.reply(SENTENCES[0], decode="beam", k=3)) == 3
    with pytest.raises(PolyReplyError, match="not supported here: num_beams"):
        made.reply(SENTENCES[0], generation_config=GenerationConfig(num_beams=4))
    made.save_pretrained(tmp_path / "saved")
    assert PolyReply.from_pretrained(tmp_path / "saved").reply(SENTENCES[0]) == replies


def test_a_model_folder_made_for_beam_search_replies(tmp_path):
    PolyReply.from_backbone(published(tmp_path / "bart"), num_decoders=2).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved/generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **BART}))
    made = PolyReply.from_pretrained(tmp_path / "saved")
    assert made.model.generation_config.num_beams is None
    assert made.reply(SENTENCES[0]) == made.reply(SENTENCES[0], generation_config=GenerationConfig(**plain(BART)))


def test_only_settings_of_beam_search_are_dropped(tmp_path):
    backbone, _ = load_backbone(published(tmp_path, num_beams=4, penalty_alpha=0.6))
    model = PolyReplyModel.from_backbone(backbone, num_decoders=2)
    with pytest.raises(PolyReplyError, match="not supported here: penalty_alpha; remove"):
        decode(model, torch.tensor([[5, 6]]), torch.ones(1, 2))


def test_a_config_without_beam_search_is_the_same_object():
    own = config(forced_eos_token_id=END, no_repeat_ngram_size=3)
    assert without_beam_search(own) is own
    given = config(num_beams=4, num_return_sequences=2, num_beam_groups=2, diversity_penalty=0.5)
    assert without_beam_search(given).to_diff_dict() == config().to_diff_dict()
    assert given.num_beams == 4
