"""PolyReply: its folder, its replies, and one line for what it cannot do."""

import pytest
import torch
from pair import SENTENCES, pair, t5, tokenizer
from tiny import model as tiny_model
from transformers import GenerationConfig

from polyreply import Dialogue, PolyReply, Reply
from polyreply.decoding import all_decoders
from polyreply.decoding.settings import Decoding
from polyreply.errors import PolyReplyError

MESSAGE = SENTENCES[0]


def decode(model, ids):
    """The responses to one context, by the model's own generation config."""
    request = Decoding.of(model.generation_config, model.num_decoders)
    return all_decoders.decode(model, ids, torch.ones_like(ids), request)


def test_the_folder_is_complete_and_nothing_more(tmp_path):
    pair().save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json"}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "README.md", *tokenizer_files}


def test_overwrite_replaces_a_model_folder_and_nothing_else(tmp_path):
    made = pair(max_new_tokens=3)
    pair().save_pretrained(tmp_path)
    with pytest.raises(PolyReplyError, match="not empty"):
        made.save_pretrained(tmp_path)
    made.save_pretrained(tmp_path, overwrite=True)
    assert PolyReply.from_pretrained(tmp_path).model.generation_config.max_new_tokens == 3
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PolyReplyError, match="something other"):
        made.save_pretrained(tmp_path, overwrite=True)


def test_replies_are_those_of_each_decoder(tmp_path):
    pair().save_pretrained(tmp_path)
    made = PolyReply.from_pretrained(tmp_path)
    replies = made.reply(MESSAGE)
    assert replies == pair().reply(MESSAGE)
    ids = tokenizer()(MESSAGE, return_tensors="pt").input_ids  # one message is its tokens and </s>
    [expected] = decode(made.model, ids)
    texts = [tokenizer().decode(one.tokens, skip_special_tokens=True).strip() for one in expected]
    assert replies == [Reply(k, text, one.logprob) for k, (text, one) in enumerate(zip(texts, expected, strict=True))]
    assert len({one.text for one in replies}) > 1


def test_a_list_is_a_batch_and_a_tuple_is_one_context():
    made = pair()
    turns = (SENTENCES[1], SENTENCES[2])
    batch = made.reply([MESSAGE, turns, Dialogue(turns, ("x",)), *SENTENCES], batch_size=2)
    single = [made.reply(one) for one in (MESSAGE, turns, turns, *SENTENCES)]
    assert [[one.text for one in row] for row in batch] == [[one.text for one in row] for row in single]
    assert batch[1] != batch[0] and len(batch) == 7
    assert made.reply([]) == []


@pytest.mark.parametrize("context", ["", "  ", (), ("a", ""), 3, [""], [["a", "b"]]], ids=repr)
def test_anything_but_a_context_is_refused(context):
    with pytest.raises(PolyReplyError, match="expected a text, a tuple of turns or a Dialogue"):
        pair().reply(context)


def test_options_go_on_top_of_the_generation_config():
    made = pair()
    ids = tokenizer()(MESSAGE, return_tensors="pt").input_ids
    [whole] = decode(made.model, ids)
    start = [tokenizer().decode(one.tokens[:2], skip_special_tokens=True).strip() for one in whole]
    assert [one.text for one in made.reply(MESSAGE, max_new_tokens=2)] == start
    assert made.model.generation_config.max_new_tokens == 8 and max(len(one.tokens) for one in whole) == 8
    assert [one.decoder for one in made.reply(MESSAGE, k=2)] == [0, 1]
    drawn = [made.reply(MESSAGE, do_sample=True, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    cold = made.reply(MESSAGE, do_sample=True, temperature=0.001)
    assert [one.text for one in cold] == [one.text for one in made.reply(MESSAGE)]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"decode": "magic"},
            "expected decode to be one of decoders, mbr, beam, nucleus, top-k, min-p, diverse-beam, found 'magic'",
        ),
        ({"k": 4}, "expected k from 1 to 3, the number of decoders, found 4"),
        ({"decode": "beam", "k": 0}, "k must be 1 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
        ({"temperature": 0.5}, "temperature: no effect without sampling"),
        ({"decode": "beam", "top_p": 0.5}, "top_p: no effect with decode beam"),
        ({"samples": 3}, "samples: no effect with decode decoders"),
        ({"do_sample": True, "temperature": -1.0}, "temperature"),
        ({"generation_config": GenerationConfig(num_beams=4)}, "not supported here: num_beams"),
        ({"generation_config": GenerationConfig(temperature=0.5)}, "temperature: no effect without sampling"),
        ({"m": 0}, "m must be 1 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
    ],
    ids=str,
)
def test_options_without_effect_or_out_of_range_are_refused(options, message):
    with pytest.raises(PolyReplyError) as caught:
        pair().reply(MESSAGE, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["beam", "nucleus", "min-p", "diverse-beam"])
def test_the_other_ways_to_decode(way):
    made = pair()
    replies = made.reply(MESSAGE, decode=way, k=4)
    assert [one.decoder for one in replies] == [0, 1, 2, 3]
    assert all(one.logprob < 0 for one in replies) and len({one.text for one in replies}) > 1
    assert len(made.reply(MESSAGE, decode=way)) == 10


def test_a_diverse_subset_keeps_the_order_of_decoders():
    made = pair(num_decoders=6)
    few, all_six = made.reply(MESSAGE, m=3), made.reply(MESSAGE)
    assert len(few) == 3 and [one for one in all_six if one in few] == few
    assert max(all_six, key=lambda one: one.logprob) in few


def test_a_tokenizer_that_is_too_large_is_refused():
    with pytest.raises(PolyReplyError, match="expected a tokenizer of at most 53 tokens"):
        PolyReply(tiny_model(), tokenizer())


def test_from_backbone_by_folder_forgets_the_path(tmp_path):
    t5().save_pretrained(tmp_path / "small-t5")
    with pytest.raises(PolyReplyError, match="expected a tokenizer"):
        PolyReply.from_backbone(tmp_path / "small-t5")
    made = PolyReply.from_backbone(tmp_path / "small-t5", tokenizer(), num_decoders=2)
    made.save_pretrained(tmp_path / "out")
    assert made.num_decoders == 2 and made.model.config.backbone["_name_or_path"] == "small-t5"
    assert all(str(tmp_path) not in (tmp_path / "out" / name).read_text() for name in ("config.json", "README.md"))
    with pytest.raises(PolyReplyError, match="cannot use the device 'nowhere'"):
        made.to("nowhere")
