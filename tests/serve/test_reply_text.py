"""Growing texts: pieces add up, and nothing is shown that would have to be taken back."""

import hypothesis
import hypothesis.strategies as st
import torch
from pair import SENTENCES, tokenizer
from transformers import GenerationConfig

from polyreply.decoding.continuous import Job
from polyreply.decoding.settings import Decoding
from polyreply.serve.reply_text import ReplyText


def row():
    return Job(torch.tensor([1]), [0], Decoding.of(GenerationConfig(), 1)).rows[0]


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    st.text(min_size=1) | st.sampled_from(SENTENCES), st.lists(st.text(min_size=1, max_size=3), max_size=3)
)
def test_pieces_add_up_to_the_text_before_the_first_stop_sequence(text, stops):
    own, tokens = row(), tokenizer()(text, add_special_tokens=False)["input_ids"]
    grown, pieces = ReplyText(own, tokenizer(), stops), []
    for place, token in enumerate(tokens):
        own.tokens.append(token)
        if place == len(tokens) - 1:
            own.finish = "length"
        pieces.append(grown.grow())
        if own.finish:
            break
    if not tokens:
        return
    decoded = tokenizer().decode(tokens, skip_special_tokens=True)
    ends = [decoded.find(stop) for stop in stops if stop in decoded]
    assert "".join(pieces) == grown.text == decoded[: min(ends, default=len(decoded))].strip()
    assert own.finish == ("stop" if ends else "length") and grown.grow() == ""


def test_halves_of_characters_and_of_stop_sequences_are_held_back():
    own = row()
    grown = ReplyText(own, _Bytes(), ["END"])
    shown = []
    for byte in "aé EN".encode() + b"D!":
        own.tokens.append(byte)
        shown.append(grown.grow())
    assert shown == ["a", "", "é", "", "", "", "", ""] and own.finish == "stop" and grown.text == "aé"


class _Bytes:
    def convert_ids_to_tokens(self, token):
        return chr(token)

    def decode(self, tokens, skip_special_tokens):
        return bytes(tokens).decode("utf-8", "replace")
