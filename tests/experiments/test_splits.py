"""The data of the experiments: how it is found, split, merged and detokenized."""

import json
import re

import pytest
import runs

from polyreply.data.chitchat import SCREENED
from polyreply.data.detokenize import is_tokenized
from polyreply.data.dialogue import Dialogue
from polyreply.errors import DataError
from polyreply.experiments.cache import Cache
from polyreply.experiments.figure_bound import one_each
from polyreply.experiments.presets import load_preset
from polyreply.experiments.run import Request, open_systems
from polyreply.experiments.splits import find_data, merge_contexts, sample, split_by_context


def test_a_split_shares_no_context_and_loses_no_row():
    rows = [Dialogue((f"context {n % 7}",), (f"reply {n}",)) for n in range(20)]
    first, second = split_by_context(rows, 0.5)
    assert {one.context for one in first}.isdisjoint(one.context for one in second)
    assert sorted(one.responses for one in first + second) == sorted(one.responses for one in rows)
    assert len({one.context for one in first}) in (3, 4)
    assert sample(rows, 5) == sample(rows, 5) and len(sample(rows, 5)) == 5
    with pytest.raises(DataError, match="two contexts or more"):
        split_by_context(rows[:1], 0.5)


def test_final_contexts_come_from_test_or_else_from_the_half_of_valid_that_trainings_do_not_get(tmp_path, write_rows):
    cache, preset = Cache(tmp_path / "out"), load_preset("smoke")
    for split, text in (("train", "a"), ("valid", "b"), ("test", "c")):
        write_rows(tmp_path / "x" / f"{split}.jsonl", [{"context": f"{text}{n}", "response": text} for n in range(30)])
    data = find_data(cache, str(tmp_path / "x"), preset)
    cache.get(data.splits)
    assert {path.name for path in data.splits.path.iterdir()} == {"train.jsonl", "valid.jsonl", "done.json"}
    cache.get(data.final)
    assert data.about()["final_split"] == "test" and '"c' in data.final_file.read_text()

    (tmp_path / "x" / "test.jsonl").unlink()
    without = find_data(cache, str(tmp_path / "x"), preset)
    paths = [cache.get(without.final), cache.get(without.selection)]
    assert without.about()["final_split"] == "valid" and without.splits.name == data.splits.name

    def contexts(path):
        return {json.loads(line)["context"] for line in path.read_text().splitlines()}

    final, selection = (contexts(path / "contexts.jsonl") for path in paths)
    in_training = contexts(data.splits.path / "valid.jsonl")
    assert final and selection and final.isdisjoint(in_training) and selection <= in_training


def test_rows_of_one_context_are_merged_for_the_final_references(tmp_path, write_rows):
    rows = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "1")]
    merged = merge_contexts(Dialogue((context,), (response,), (f"act {response}",)) for context, response in rows)
    assert merged == [Dialogue(("a",), ("1", "3"), ("act 1", "act 3")), Dialogue(("b",), ("2",), ("act 2",))]
    for split in ("train", "valid", "test"):
        write_rows(tmp_path / f"{split}.jsonl", [{"context": f"{n % 5}", "response": f"{n}"} for n in range(20)])
    origin = open_systems(Request(str(tmp_path), "smoke", tmp_path / "out")).origin()
    assert origin["final_numbers_from"].startswith("test, 5 contexts, 4.0 references each; 15 rows were merged")


def test_the_bound_takes_one_response_of_each_context():
    rows = [Dialogue(("a",), ("1", "2"), ("x", "y")), Dialogue(("b",), ("3",)), Dialogue(("a",), ("4",), ("z",))]
    one, two = one_each(rows)
    assert one.context == ("a",) and two == Dialogue(("b",), ("3",)) and len(one.responses) == len(one.acts) == 1
    assert dict(zip("124", "xyz", strict=True))[one.responses[0]] == one.acts[0]


def test_chinese_is_recognised_and_changes_the_preset(tmp_path, write_rows):
    for split in ("train", "valid"):
        rows = [{"context": f"你好{n}", "response": "很高兴"} for n in range(9)]
        write_rows(tmp_path / "zh" / f"{split}.jsonl", rows)
    for preset, overrides, model in (
        ("mini", (), ("mini", 8000)),
        ("smoke", (), ("mini", 8000)),
        ("smoke", ("model.vocab_size=5000",), ("mini", 5000)),
        ("smoke", ("language=en",), ("mini", 400)),
        ("mini", ("language=en",), ("shipped", 8000)),
    ):
        systems = open_systems(Request(str(tmp_path / "zh"), preset, tmp_path, overrides))
        assert (systems.preset.model.backbone, systems.preset.model.vocab_size) == model
        assert systems.data.tokenizer == ("wordpunct" if overrides == ("language=en",) else "characters")


def test_tokenized_texts_are_detokenized_in_all_splits_alike(tmp_path, write_rows):
    texts = {
        "train": ("i don ’ t know {} .", "that ' s fine ."),
        "valid": ("i don't know {}.", "that's fine."),
        "test": ("i do n't know {} .", "that 's fine ."),
    }
    for split, (text, response) in texts.items():
        rows = [{"context": text.format(n), "responses": [response]} for n in range(30)]
        write_rows(tmp_path / "apart" / f"{split}.jsonl", rows)
    cache = Cache(tmp_path / "out")

    def found(*overrides):
        data = find_data(cache, str(tmp_path / "apart"), load_preset("smoke", overrides))
        files = [cache.get(data.splits) / "train.jsonl", data.splits.path / "valid.jsonl"]
        cache.get(data.final)
        rows = [json.loads(line) for path in (*files, data.final_file) for line in path.read_text().splitlines()]
        return {(re.sub(r"\d+", "N", row["context"]), *row["responses"]) for row in rows}, data

    joined, data = found()
    assert joined == {("i don't know N.", "that's fine.")} and "detokenized" in data.preparation
    kept, as_it_is = found("detokenize=never")
    assert kept == {(text.format("N"), response) for text, response in texts.values()} and not as_it_is.preparation
    assert as_it_is.splits.name != data.splits.name
    halves = [one.splits.path / "valid.jsonl" for one in (data, as_it_is)]
    assert len({tuple(re.findall(r"\d+", half.read_text())) for half in halves}) == 1, "the selection half is the same"


@pytest.mark.parametrize(
    "text, expected",
    [("yes , i am .", True), ("Yes, I am.", False), ("no signs", False), ("好 的 。", True), ("好的。", False)],
)
def test_tokenized_text_is_recognised(tmp_path, write_rows, text, expected):
    assert is_tokenized(write_rows(tmp_path / "valid.jsonl", [{"context": text, "response": text}])) is expected


def test_a_folder_without_valid_is_one_clear_line(tmp_path, write_rows):
    write_rows(tmp_path / "d" / "train.jsonl", [{"context": "a", "response": "b"}])
    with pytest.raises(DataError, match="expected train and valid, found no valid"):
        find_data(Cache(tmp_path), str(tmp_path / "d"), load_preset("smoke"))


def test_only_embedded_corpora_given_by_name_may_be_published(tmp_path, monkeypatch):
    cache, preset = Cache(tmp_path / "out"), load_preset("smoke")
    for name in ("chitchat", "smalltalk-explicit", "smalltalk-implicit"):
        assert find_data(cache, name, preset).may_be_published
        folder = tmp_path / name
        folder.mkdir()
        assert not find_data(cache, str(runs.write_corpus(folder, rows=3)), preset).may_be_published
    monkeypatch.chdir(tmp_path)
    assert not find_data(cache, "chitchat", preset).may_be_published, "a folder of that name is here"


def test_chitchat_is_screened_and_the_preparation_says_how(tmp_path):
    chitchat, smalltalk = (
        find_data(Cache(tmp_path), name, load_preset("smoke")) for name in ("chitchat", "smalltalk-explicit")
    )
    [prepared] = chitchat.splits.needs
    clean = prepared.inputs["recipe"]["clean"]
    assert clean["max_words"] == SCREENED.max_words and clean["personal"] and "utah" in clean["words"]
    assert chitchat.preparation.startswith("screened: 2 to 25 words") and not smalltalk.preparation


def test_a_single_file_is_known_by_its_content_and_its_language_is_recognised(tmp_path, write_rows):
    cache, preset, file = Cache(tmp_path / "out"), load_preset("smoke"), tmp_path / "all.jsonl"

    def data(text):
        write_rows(file, [{"context": f"{text}{n}", "response": text} for n in range(9)])
        return find_data(cache, str(file), preset)

    english, chinese = data("hello"), data("很高兴")
    assert english.splits.name != chinese.splits.name and english.final.name != data("bye").final.name
    assert (english.language, chinese.language) == ("en", "zh") and english.splits.name == data("hello").splits.name


def test_the_link_to_the_training_data_is_repaired(tmp_path):
    cache, preset = Cache(tmp_path / "out"), load_preset("smoke")

    def data(place):
        return find_data(cache, str(tmp_path / place / "talk"), preset)

    (tmp_path / "old" / "talk").mkdir(parents=True)
    runs.write_corpus(tmp_path / "old" / "talk", rows=3)
    link = cache.get(data("old").splits) / "train.jsonl"
    (tmp_path / "old").rename(tmp_path / "new")
    assert not link.exists() and data("new").splits.path == link.parent and data("new").splits.is_done
    cache.get(cache.task("scores", "after", {}, lambda path: path.mkdir(), [data("new").splits]))
    assert link.read_text() == (tmp_path / "new" / "talk" / "train.jsonl").read_text()
