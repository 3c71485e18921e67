"""Training, saving and telling apart tokenizers; contexts and responses as tokens."""

import json
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreply.data.context_format import ContextFormat, Truncation, encode_contexts, encode_responses
from polyreply.data.tokenizer import SPECIAL_TOKENS, fingerprint, load_tokenizer, train_tokenizer
from polyreply.errors import DataError

SENTENCES = [
    "Good morning! Did you sleep well?",
    "I didn't. The neighbours' dog was barking (again), all night...",
    "Shall we have breakfast by the window?  It's sunny there.",
    "Yes, please: two eggs, toast & some tea.",
    "The code on the door is <b>0x14</b>.",
    "你好，今天的天气真好。",
    "我们下午去公园散步吧！",
    "好啊，我带上茶和面包。",
]
KINDS = ("unigram", "bpe")


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: train_tokenizer(SENTENCES, kind=kind, vocab_size=480) for kind in KINDS}


@pytest.fixture(scope="module")
def tokenizer(tokenizers):
    return tokenizers["unigram"]


def variant(tokenizer, single: str | None, special_ids=(), **special_tokens):
    """A tokenizer of the same pieces that frames a text differently, as the families of models do."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(single=single or "$A", special_tokens=list(special_ids))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)


# --- training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first_in_the_order_of_t5(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer("Good morning!").input_ids.count(1) == 1
    assert tokenizer("Good morning!").input_ids[-1] == 1
    assert len(tokenizer) <= 480


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [*SENTENCES, "well , you know .", " a  b ", "dogs\nand\ttea", "你好 hello 你好", "<0x41>", "ꙮ!", ""],
)
def test_decoding_gives_the_text_back(tokenizers, kind, text):
    ids = tokenizers[kind](text).input_ids
    assert tokenizers[kind].decode(ids, skip_special_tokens=True) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(text=st.text(st.sampled_from(sorted({*"".join(SENTENCES), *"Ωé☃龘🎉"} - {"<"}))))
def test_any_text_survives_even_of_characters_never_seen(tokenizers, kind, text):
    ids = tokenizers[kind](text).input_ids
    assert tokenizers[kind].unk_token_id not in ids
    assert tokenizers[kind].decode(ids, skip_special_tokens=True) == unicodedata.normalize("NFKC", text)


def test_frequent_words_become_one_piece():
    tokenizer = train_tokenizer(["the dog saw the other dog", "the dog, the dog!"] * 20, vocab_size=320)
    assert tokenizer.tokenize("the dog!") == ["▁the", "▁dog", "!"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_tokenizer(tokenizers, kind):
    again = train_tokenizer(iter(SENTENCES), kind=kind, vocab_size=480)
    assert again.get_vocab() == tokenizers[kind].get_vocab()
    assert fingerprint(again) == fingerprint(tokenizers[kind])


def test_a_new_process_loads_them_with_identical_ids(tokenizers, tmp_path):
    for kind in KINDS:
        tokenizers[kind].save_pretrained(tmp_path / kind)
    texts = [*SENTENCES, "one<turn>two", "☃"]
    code = (
        "import json, sys; from transformers import AutoTokenizer; folders, texts = map(json.loads, sys.argv[1:]); "
        "print(json.dumps([AutoTokenizer.from_pretrained(folder)(texts).input_ids for folder in folders]))"
    )
    folders = [str(tmp_path / kind) for kind in KINDS]
    command = [sys.executable, "-c", code, json.dumps(folders), json.dumps(texts)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [tokenizers[kind](texts).input_ids for kind in KINDS]
    for kind in KINDS:
        assert fingerprint(load_tokenizer(tmp_path / kind)) == fingerprint(tokenizers[kind])


@pytest.mark.parametrize(
    ("texts", "vocab_size", "message"),
    [
        ([], 500, "needs text to train on"),
        ([""], 500, "needs text to train on"),
        (["abc"], 100, "vocab_size 100 has no room"),
        (
            [chr(0x4E00 + i) for i in range(300)],
            500,
            "of 561 or more for 301 different characters.*found 500",
        ),
    ],
)
def test_impossible_training_is_refused_in_one_line(texts, vocab_size, message):
    with pytest.raises(DataError, match=message) as caught:
        train_tokenizer(texts, vocab_size=vocab_size)
    assert "\n" not in str(caught.value)


def test_the_least_vocabulary_named_by_the_error_is_enough():
    assert len(train_tokenizer([chr(0x4E00 + i) for i in range(300)], vocab_size=561)) == 561


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_texts_source_is_passed_on(kind):
    def texts():
        yield "abc"
        raise DataError("row 2 is bad")

    with pytest.raises(DataError, match="row 2 is bad"):
        train_tokenizer(texts(), kind=kind, vocab_size=262)


@pytest.mark.parametrize("make", [False, True])
def test_a_missing_tokenizer_is_one_line(tmp_path, make):
    folder = tmp_path / "model"
    if make:
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{broken")
    with pytest.raises(DataError, match="expected a folder with a tokenizer") as caught:
        load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)


def test_fingerprint_follows_what_decides_the_ids_and_nothing_else(tokenizer):
    from tokenizers import normalizers

    def copy():
        return variant(tokenizer, "$A </s>", [("</s>", 1)], eos_token="</s>", pad_token="<pad>")

    base = fingerprint(copy())
    padded = copy()
    padded(["a", "much longer"], padding=True, truncation=True, max_length=3)
    assert fingerprint(padded) == base

    changed = [copy() for _ in range(4)]
    changed[0].add_tokens(["breakfast"])
    changed[1].chat_template = "{{ messages }}"
    changed[2].backend_tokenizer.normalizer = normalizers.Lowercase()
    changed[3].eos_token = "<turn>"
    assert len({base, *map(fingerprint, changed)}) == 5


# --- contexts ---------------------------------------------------------------------------------------------


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def ids_of_parts(tokenizer, *parts):
    return [token for part in parts for token in ids_of(tokenizer, part)]


def one_context(tokenizer, turns, **settings):
    (ids,), report = encode_contexts(tokenizer, [tuple(turns)], ContextFormat(**settings))
    return ids.tolist(), report


def test_turns_are_joined_by_the_separator_and_closed_as_the_tokenizer_does(tokenizer):
    ids, report = one_context(tokenizer, ["Good morning!", "I didn't."])
    assert ids == [*ids_of(tokenizer, "Good morning!"), 3, *ids_of(tokenizer, "I didn't."), 1]
    assert report == Truncation(contexts=1)


def test_families_of_tokenizers_frame_a_context_their_own_way(tokenizer):
    one, two = ids_of(tokenizer, "tea"), ids_of(tokenizer, "toast")
    t5 = variant(tokenizer, "$A </s>", [("</s>", 1)], eos_token="</s>")
    bart = variant(tokenizer, "<pad> $A </s>", [("<pad>", 0), ("</s>", 1)], bos_token="<pad>", eos_token="</s>")
    gpt = variant(tokenizer, "$A", eos_token="</s>")
    llama = variant(tokenizer, "<unk> $A", [("<unk>", 2)], bos_token="<unk>", eos_token="</s>")
    for each in (t5, bart, gpt, llama):  # forget <turn>, which foreign tokenizers do not have
        each.get_added_vocab = dict
    framed = [one_context(each, ["tea", "toast"])[0] for each in (t5, bart, gpt, llama)]
    body = [*one, 1, *two]
    assert framed == [[*body, 1], [0, *body, 1], [*body, 1], [2, *body, 1]]
    assert [encode_responses(each, ["tea"], ContextFormat())[0][0].tolist() for each in (t5, bart, gpt, llama)] == [
        [*one, 1]
    ] * 4


def test_prefix_and_separator_of_the_format_are_used(tokenizer):
    ids, _ = one_context(tokenizer, ["tea", "toast"], prefix="dog:", turn_separator=" / ")
    assert ids == [*ids_of_parts(tokenizer, "dog:", "tea", " / ", "toast"), 1]


def test_the_oldest_turns_are_dropped_whole(tokenizer):
    turns = ["Did you sleep well?", "tea", "toast"]
    whole = len(one_context(tokenizer, turns)[0])
    last_two = one_context(tokenizer, turns[1:])[0]
    assert one_context(tokenizer, turns, max_context_tokens=whole)[1].contexts_lost_turns == 0
    for limit in (whole - 1, len(last_two)):
        ids, report = one_context(tokenizer, turns, max_context_tokens=limit)
        assert ids == last_two
        assert report == Truncation(contexts=1, contexts_lost_turns=1)


def test_a_last_turn_too_long_loses_its_oldest_tokens_but_not_the_frame(tokenizer):
    prefix, turn = ids_of(tokenizer, "dog:"), ids_of(tokenizer, "Shall we have breakfast")
    limit = len(prefix) + 3 + 1
    turns = ["tea", "Shall we have breakfast"]
    ids, report = one_context(tokenizer, turns, prefix="dog:", max_context_tokens=limit)
    assert ids == [*prefix, *turn[-3:], 1]
    assert report == Truncation(contexts=1, contexts_lost_turns=1, contexts_cut_inside_turn=1)


def test_a_response_that_is_cut_does_not_end(tokenizer):
    content = ids_of(tokenizer, "Shall we have breakfast")
    format = ContextFormat(max_response_tokens=len(content) + 1)
    (fits,), report = encode_responses(tokenizer, ["Shall we have breakfast"], format)
    assert fits.tolist() == [*content, 1]
    assert report == Truncation(responses=1)
    for limit in (len(content), 4):
        format = replace(format, max_response_tokens=limit)
        (cut,), report = encode_responses(tokenizer, ["Shall we have breakfast"], format)
        assert cut.tolist() == content[:limit]
        assert report == Truncation(responses=1, responses_cut=1)


def test_typed_special_tokens_are_not_special(tokenizer):
    ids, _ = one_context(tokenizer, ["tea</s>", "<turn><pad>toast"])
    assert ids == one_context(tokenizer, ["tea", "toast"])[0]
    (response,), _ = encode_responses(tokenizer, ["tea</s>"], ContextFormat())
    assert response.tolist() == [*ids_of(tokenizer, "tea"), 1]


def test_the_files_own_truncation_and_padding_never_apply(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    saved["padding"] = {
        "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    cutting = load_tokenizer(tmp_path)
    assert len(cutting.backend_tokenizer.encode(SENTENCES[1]).ids) == 40, "the file does not truncate or pad"
    expected = one_context(tokenizer, SENTENCES[:2])[0]
    assert len(expected) > 40
    assert one_context(cutting, SENTENCES[:2])[0] == expected
    cutting.backend_tokenizer.enable_truncation(5)
    (response,), report = encode_responses(cutting, [SENTENCES[1]], ContextFormat())
    assert response.tolist() == tokenizer(SENTENCES[1]).input_ids
    assert report.responses_cut == 0


CHAT = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRICT = "{% if messages[0]['role'] == 'assistant' %}{{ raise_exception('user first') }}{% endif %}" + CHAT


def test_a_chat_template_frames_the_turns(tokenizer):
    chat = variant(tokenizer, "$A </s>", [("</s>", 1)], eos_token="</s>")
    chat.chat_template = CHAT
    ids, _ = one_context(chat, ["tea", "toast"], chat_template=True, prefix="dog")
    expected = ("[system]dog</s>[assistant]", "tea", "</s>[user]", "toast", "</s>[assistant]")
    assert ids == ids_of_parts(chat, *expected)
    limit = len(ids_of_parts(chat, "[user]", "toast", "</s>[assistant]"))
    short, report = one_context(chat, ["tea", "toast"], chat_template=True, max_context_tokens=limit)
    assert short == ids_of_parts(chat, "[user]", "toast", "</s>[assistant]")
    assert report.contexts_lost_turns == 1


def test_a_template_that_wants_the_user_first_loses_the_turn_before(tokenizer):
    chat = variant(tokenizer, "$A </s>", [("</s>", 1)], eos_token="</s>")
    chat.chat_template = STRICT
    ids, report = one_context(chat, ["tea", "toast"], chat_template=True)
    assert ids == ids_of_parts(chat, "[user]", "toast", "</s>[assistant]")
    assert report.contexts_lost_turns == 1
    assert one_context(chat, ["a", "tea", "toast"], chat_template=True)[1].contexts_lost_turns == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context_tokens": 0}, "max_context_tokens must be 1 or more"),
        ({"max_response_tokens": 0}, "max_response_tokens must be 1 or more"),
        ({"max_context_tokens": 1}, "leaves no room for a turn: .* take 1; use 2 or more"),
        ({"turn_separator": ""}, "becomes no token"),
        ({"chat_template": True}, "chat template cannot frame"),
    ],
)
def test_an_impossible_format_is_refused_in_one_line(tokenizer, settings, message):
    with pytest.raises(DataError, match=message) as caught:
        one_context(tokenizer, ["tea", "toast", "tea"], **settings)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_end_of_sequence_is_refused(tokenizer):
    endless = variant(tokenizer, "$A", unk_token="<unk>")
    for encode, text in ((encode_contexts, ("tea",)), (encode_responses, "tea")):
        with pytest.raises(DataError, match="has no eos_token"):
            encode(endless, [text], ContextFormat())


def test_a_context_without_turns_is_refused(tokenizer):
    with pytest.raises(DataError, match="context 1 has no turns"):
        encode_contexts(tokenizer, [("tea",), ()], ContextFormat())


def test_nothing_heavy_is_imported_with_the_modules():
    names = "batches", "context_format", "folder", "prepare", "token_corpus", "tokenizer"
    code = "import sys; " + "".join(f"import polyreply.data.{name}; " for name in names)
    code += "sys.exit(bool({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
