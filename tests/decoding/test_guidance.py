"""Guidance against `generate`, once per decoder, with a negative prompt or a processor that does the sum."""

import pytest
import tiny
import torch
from pair import SENTENCES, pair
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from polyreply.decoding.all_decoders import decode
from polyreply.decoding.mbr import mbr
from polyreply.errors import PolyReplyError

EMPTY = (5, 9, 4)
MODELS = [*((name, {}) for name in tiny.BACKBONES), ("llama", tiny.LORA), ("gpt2", tiny.EVERYTHING)]


class FromEmpty(LogitsProcessor):
    """The sum of guidance, for which the stock model reads everything again."""

    def __init__(self, backbone, scale):
        self.backbone, self.scale = backbone, scale

    def __call__(self, input_ids, scores):
        empty = self.backbone(input_ids=torch.tensor([EMPTY]), decoder_input_ids=input_ids).logits[:, -1]
        return self.scale * scores.log_softmax(-1) - (self.scale - 1) * empty.log_softmax(-1)


def config(scale, **settings):
    ids = {"eos_token_id": tiny.EOS, "pad_token_id": tiny.PAD}
    return GenerationConfig(**{"max_new_tokens": 8, **ids, "guidance_scale": scale, **settings})


def generated(model, context, k, scale, **settings):
    """What `generate` says with decoder k to one context."""
    given = {"attention_mask": torch.ones_like(context)}
    with model.as_decoder(k) as backbone, torch.no_grad():
        if model.family.encoder:
            options = config(None, **settings)
            given["logits_processor"] = LogitsProcessorList([FromEmpty(backbone, scale)])
        else:
            options = config(scale, **settings)
            given["negative_prompt_ids"] = torch.tensor([EMPTY])
            given["negative_prompt_attention_mask"] = torch.ones(1, len(EMPTY), dtype=torch.long)
        tokens = backbone.generate(context, generation_config=options, **given)
    new = tokens[0, 1 if model.family.encoder else context.shape[1] :].tolist()
    return new[: new.index(tiny.EOS) + 1] if tiny.EOS in new else new


def said(model, samples, scale, **settings):
    request = tiny.request(config(scale, **settings), model.num_decoders, empty_context=EMPTY)
    return decode(model, samples.context_NS, samples.context_mask_NS, request)


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_tokens_are_those_of_generate(name, settings):
    model, samples = tiny.model(name, **settings), tiny.samples()
    plain, replies = said(model, samples, None), said(model, samples, 3.0)
    for row, (responses, before) in enumerate(zip(replies, plain, strict=True)):
        context = samples.context_NS[row][samples.context_mask_NS[row]][None]
        assert [one.tokens for one in responses] == [
            generated(model, context, k, 3.0) for k in range(model.num_decoders)
        ]
        assert [(one.context, one.decoder) for one in responses] == [(one.context, one.decoder) for one in before]
    assert [[one.tokens for one in row] for row in replies] != [[one.tokens for one in row] for row in plain]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        *((name, {"no_repeat_ngram_size": 2, "min_new_tokens": 5}) for name in ("t5", "llama", "bart")),
        ("llama", {"repetition_penalty": 1.7}),  # to encoder-decoder models `generate` applies it before our processor
    ],
)
def test_constraints_come_after_it(name, rules):
    model, samples = tiny.model(name), tiny.samples()
    for row in range(len(samples)):
        part = samples.select(torch.tensor([row]))
        context = part.context_NS[part.context_mask_NS][None]
        [responses] = said(model, part, 2.5, **rules)
        for k, response in enumerate(responses):
            assert response.tokens == generated(model, context, k, 2.5, **rules)


def test_a_scale_of_one_changes_nothing_and_log_probabilities_are_the_decoders_own():
    model, samples = tiny.model("t5"), tiny.samples()
    assert said(model, samples, 1.0) == said(model, samples, None)
    for scale in (None, 3.0):
        for row in said(model, samples, scale, max_new_tokens=1):
            for response in row:
                [nll] = first_token_nll(model, samples.select(torch.tensor([response.context])), response)
                assert response.logprob == pytest.approx(-nll)


def first_token_nll(model, samples, response):
    context = samples.context_NS[samples.context_mask_NS][None]
    with model.as_decoder(response.decoder) as backbone, torch.no_grad():
        start = torch.tensor([[backbone.config.decoder_start_token_id]])
        logits = backbone(input_ids=context, decoder_input_ids=start).logits[:, 0]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(response.tokens), reduction="none").tolist()


def test_samples_and_minimum_bayes_risk_are_guided_too():
    model, samples = tiny.model("t5"), tiny.samples()
    given = model, samples.context_NS, samples.context_mask_NS
    for way, settings, options in ((decode, {"do_sample": True, "top_k": 0}, {}), (mbr, {}, {"samples": 2})):
        without, weak, strong = (
            way(*given, tiny.request(config(scale, **settings), seed=1, empty_context=EMPTY, **options))
            for scale in (None, 1.0, 4.0)
        )
        assert without == weak != strong


def test_a_request_takes_the_empty_context_from_the_format():
    made = pair()
    plain = [made.reply(SENTENCES[:3], max_new_tokens=8, guidance_scale=scale) for scale in (None, 1.0, 5.0)]
    assert plain[0] == plain[1] != plain[2]
    alone = made.reply(SENTENCES[1], max_new_tokens=8, guidance_scale=5.0)
    assert [one.text for one in plain[2][1]] == [one.text for one in alone]


def test_a_model_has_a_scale_of_its_own_for_its_decoders_alone():
    made = pair()
    plain, guided = (made.reply(SENTENCES[0], max_new_tokens=8, guidance_scale=scale) for scale in (None, 5.0))
    beams = made.reply(SENTENCES[0], max_new_tokens=8, decode="beam", k=3)
    made.model.generation_config.guidance_scale = 5.0
    assert made.reply(SENTENCES[0], max_new_tokens=8) == guided != plain
    assert made.reply(SENTENCES[0], max_new_tokens=8, guidance_scale=1.0) == plain
    assert made.reply(SENTENCES[0], max_new_tokens=8, decode="beam", k=3) == beams
    assert made.model.plain_backbone().generation_config.guidance_scale is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance_scale": 0.5}, "guidance_scale: expected a finite number of 1 .no guidance. or more, found 0.5"),
        ({"guidance_scale": float("nan")}, "guidance_scale: expected a finite number"),
        ({"guidance_scale": float("inf")}, "guidance_scale: expected a finite number"),
        ({"guidance_scale": "strong"}, "guidance_scale: expected a finite number of .*, found strong"),
        ({"guidance_scale": 2.0, "decode": "beam"}, "guidance_scale: no effect with decode beam, it has no options"),
    ],
)
def test_invalid_requests_are_errors_of_one_line(options, message):
    with pytest.raises(PolyReplyError, match=message):
        pair().reply(SENTENCES[0], **options)


def test_without_the_tokens_of_an_empty_context_it_is_refused():
    model, samples = tiny.model("t5"), tiny.samples()
    with pytest.raises(PolyReplyError, match="expected the tokens of an empty context, found none"):
        decode(model, samples.context_NS, samples.context_mask_NS, tiny.request(config(2.0)))
