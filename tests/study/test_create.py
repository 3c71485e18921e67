"""Studies from response files: sampling, pairing, blinding, balance, checks, and files that do not fit."""

import json
from collections import Counter

import pytest
from studies import make_study, write_responses

from polyreply.errors import PolyReplyError
from polyreply.study.create import StudySettings, name_systems, new_study
from polyreply.study.folder import load_study, load_tokens, open_answers
from polyreply.study.wording import SHIPPED, load_wording


def made(study):
    """Everything but the ids, which are random."""
    people = [[(i.comparison, i.swapped, i.orders, i.is_repeat) for i in one.items] for one in study.annotators]
    return study.comparisons, people


def test_a_study_as_in_the_paper(tmp_path):
    _, study = make_study(tmp_path, contexts=120, k=4, people=5)
    assert study.pairs == (("ours", "beam"),) and study.questions == ("quality", "diversity")
    assert study.settings["contexts"] == 100 and study.settings["votes"] == 5
    assert len(study.comparisons) == 200 and all(len(one.items) == 200 for one in study.annotators)
    for one in study.comparisons:
        sizes = {"quality": 1, "diversity": 4}[one.question]
        assert [len(texts) for texts in one.texts] == [sizes, sizes]
        assert one.context == (f"message {one.row - 1}",)
        for system, texts in zip(one.systems, one.texts, strict=True):
            assert all(text.split()[-1].startswith(f"{system[0]}{one.row - 1}") for text in texts)
    asked = [study.comparisons[item.comparison].question for item in study.annotators[0].items]
    assert asked == ["quality"] * 100 + ["diversity"] * 100  # all K responses are never seen before quality is judged
    assert len({made(study)[1][n][0] for n in range(5)}) > 1  # an order of their own


def test_the_seed_decides_everything_but_ids(tmp_path):
    files = name_systems(list(map(str, write_responses(tmp_path, contexts=30).values())))
    one, two, other = (
        new_study(files, load_wording("en"), StudySettings(contexts=10, repeats=2, gold=2, seed=seed))
        for seed in (3, 3, 4)
    )
    assert made(one) == made(two) != made(other)
    ids = [item.id for study in (one, two) for person in study.annotators for item in person.items]
    assert len(set(ids)) == len(ids)


def test_the_shown_response_is_drawn_by_the_same_rule_for_all_systems(tmp_path):
    """Each of the K responses of each system is drawn about as often, and once for all pairs of a context."""
    _, study = make_study(tmp_path, names=("ours", "beam", "nucleus"), contexts=300, k=3, people=1)
    draws = {}
    for one in study.comparisons:
        for system, texts in zip(one.systems, one.texts, strict=True):
            if one.question == "quality":
                draws.setdefault((system, one.row), set()).add(texts[0][-2])
    assert all(len(drawn) == 1 for drawn in draws.values())
    for system in ("ours", "beam", "nucleus"):
        counts = Counter(drawn for (name, _), [drawn] in draws.items() if name == system)
        assert len(counts) == 3 and min(counts.values()) > 15


def test_load_and_sides_are_balanced(tmp_path):
    _, study = make_study(tmp_path, names=("ours", "beam", "nucleus"), contexts=20, people=4, votes=3)
    loads = [len(one.items) for one in study.annotators]
    assert sum(loads) == len(study.comparisons) * 3 and max(loads) - min(loads) <= 1
    sides = Counter()
    for person in study.annotators:
        for item in person.items:
            comparison = study.comparisons[item.comparison]
            sides[person.name, comparison.question, comparison.systems] += 1 if item.swapped else -1
            sides[item.comparison] += 1 if item.swapped else -1
    assert all(abs(surplus) <= 1 for surplus in sides.values())


def test_texts_of_a_side_are_shuffled_and_stripped(tmp_path):
    rows = [{"context": f" m{n} ", "responses": [f" {n}a ", f"{n}b\n", f"{n}c"]} for n in range(8)]
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = name_systems([str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")])
    study = new_study(files, load_wording("en"), StudySettings(questions=("diversity",)))
    seen = Counter()
    for person in study.annotators:
        for item in person.items:
            number = study.comparisons[item.comparison].context[0][1]
            for side in study.shown(item):
                assert sorted(side) == [f"{number}a", f"{number}b", f"{number}c"]
                seen["".join(text[1] for text in side)] += 1
    assert len(seen) == 6


def test_repeats_exchange_sides_and_gold_checks_have_a_right_answer(tmp_path):
    _, study = make_study(tmp_path, contexts=30, repeats=4, gold=3, people=2)
    for person in study.annotators:
        first = {item.comparison: item for item in person.items if not item.is_repeat}
        again = [item for item in person.items if item.is_repeat]
        gold = [item for item in person.items if study.comparisons[item.comparison].is_gold]
        assert len(again) == 8 and len(gold) == 6 and len(person.items) == 60 + 8 + 6
        assert all(item.swapped != first[item.comparison].swapped for item in again)
        assert not {item.comparison for item in again} & {item.comparison for item in gold}
    for one in (one for one in study.comparisons if one.is_gold):
        better, worse = one.texts
        if one.question == "quality":
            assert better != worse and sorted(better[0].split()) == sorted(worse[0].split())
        else:
            assert len(set(better)) == 3 and len(set(worse)) == 1 and worse[0] in better


def test_gold_checks_of_ones_own(tmp_path):
    row = {"question": "quality", "context": "Are you well?", "better": "Yes, thanks.", "worse": "Banana seven."}
    (tmp_path / "gold.jsonl").write_text(json.dumps(row) + "\n")
    _, study = make_study(tmp_path / "s", gold_file=tmp_path / "gold.jsonl")
    [check] = [one for one in study.comparisons if one.is_gold]
    assert check.texts == (("Yes, thanks.",), ("Banana seven.",)) and check.context == ("Are you well?",)


def test_a_context_that_repeats_is_sampled_once(tmp_path):
    rows = [{"context": f"m{n % 3}", "responses": [f"reply {n}"]} for n in range(9)]
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = name_systems([str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")])
    study = new_study(files, load_wording("en"), StudySettings())
    assert sorted(one.context for one in study.comparisons) == [("m0",), ("m1",), ("m2",)]
    assert study.questions == ("quality",)  # K = 1: there is no diversity to judge


def test_the_folder_is_private_and_comes_back_as_it_was(tmp_path):
    folder, study = make_study(tmp_path)
    assert load_study(folder) == study and folder.stat().st_mode & 0o077 == 0
    tokens = load_tokens(folder)
    assert list(tokens.annotators) == [one.name for one in study.annotators]
    assert len({tokens.researcher, *tokens.annotators.values()}) == 4 and len(tokens.researcher) >= 32


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "rows, facts",
    [
        ([{"context": "other", "responses": ["a", "b", "c"]}] * 12, ["line 1", "'other'", "'message 0'"]),
        ([{"context": f"message {n}", "responses": ["a", "b"]} for n in range(12)], ["3 responses", "found 2"]),
        ([{"context": f"message {n}", "responses": ["a"] * (2 + n)} for n in range(12)], ["line 2", "one K"]),
        ([{"context": f"message {n}", "responses": ["a"] * 3} for n in range(11)], ["12 rows", "found 11"]),
        ([], ["empty file"]),
    ],
)
def test_response_files_that_do_not_fit(tmp_path, polyreply_here, rows, facts):
    ours = write_responses(tmp_path)["ours"]
    other = write(tmp_path / "other.jsonl", rows)
    done = polyreply_here("study", "new", ours, other, "--out", tmp_path / "study")
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and str(other) in line and all(fact in line for fact in facts)
    assert "references" not in line and not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "options, facts",
    [
        (["--contexts", 13], ["1 to 12", "13"]),
        (["--votes", 6], ["1 to 5", "6"]),
        (["--questions", "beauty"], ["quality, diversity", "beauty"]),
        (["--pair", "ours:them"], ["ours, beam", "them"]),
        (["--pair", "ours"], ["ours:beam"]),
        (["--pair", "ours:beam", "--pair", "beam:ours"], ["twice"]),
        (["--annotators", "bo,bo"], ["bo, bo"]),
        (["--repeats", 5], ["at most 4"]),
        (["--gold", 99], ["99"]),
        (["--wording", "fr"], ["en, zh", "fr"]),
        (["--gold-file", "none.jsonl"], ["none.jsonl"]),
        (["--power", "33:48"], ["48:33"]),
        (["--power", "much"], ["48:33", "much"]),
    ],
)
def test_a_wrong_option_is_one_clear_line(tmp_path, polyreply_here, options, facts):
    files = write_responses(tmp_path)
    done = polyreply_here("study", "new", *files.values(), "--out", tmp_path / "study", *options)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and all(fact in line for fact in facts) and not (tmp_path / "study").exists()


def test_files_are_needed_and_an_existing_study_is_never_replaced(tmp_path, polyreply_here):
    files = list(write_responses(tmp_path).values())
    for wrong in ([], files[:1], [files[0], files[0]], files):
        assert polyreply_here("study", "new", *wrong).returncode == 2
    assert polyreply_here("study", "new", *files, "--out", tmp_path / "study").returncode == 0
    before = (tmp_path / "study" / "tokens.json").read_bytes()
    assert polyreply_here("study", "new", *files, "--out", tmp_path / "study").returncode == 2
    assert (tmp_path / "study" / "tokens.json").read_bytes() == before


def test_power_is_printed_and_nothing_is_written(tmp_path, polyreply_here):
    files = write_responses(tmp_path, contexts=100)
    alone = polyreply_here("study", "new", "--power", "48.2:32.8", "--json")
    assert [round(power, 3) for _, power in json.loads(alone.stdout)["power"]] == [0.801, 0.901]
    planned = polyreply_here("study", "new", *files.values(), "--power", "48.2:32.8", "--out", tmp_path / "study")
    assert "500" in planned.stdout and not (tmp_path / "study").exists()


@pytest.mark.parametrize("spoil", ["version", "text", "type", "answers", "other"])
def test_a_study_folder_of_another_version_or_damaged_is_one_clear_line(tmp_path, polyreply_here, spoil):
    folder, _ = make_study(tmp_path / "a")
    path, tree = folder / "study.json", json.loads((folder / "study.json").read_text())
    if spoil == "version":
        path.write_text(json.dumps({**tree, "schema_version": 99}))
    elif spoil == "text":
        path.write_text("{")
    elif spoil == "type":
        path.write_text(json.dumps({**tree, "pairs": 7}))
    elif spoil == "answers":
        (folder / "judgements.sqlite").write_text("no database")
    else:
        other, _ = make_study(tmp_path / "b")
        (folder / "judgements.sqlite").write_bytes((other / "judgements.sqlite").read_bytes())
    for command in (["results", folder], ["serve", folder, "--port", 0]):
        done = polyreply_here("study", *command)
        [line] = done.stderr.splitlines()
        assert done.returncode == 2 and str(folder) in line
        assert spoil != "version" or ("99" in line and "upgrade" in line)
    assert polyreply_here("study", "results", tmp_path).returncode == 2


def test_a_wording_file_may_ask_other_questions(tmp_path):
    own, shipped = tmp_path / "own.yaml", (SHIPPED / "zh.yaml").read_text(encoding="utf-8")
    own.write_text(shipped.replace("quality:", "humour:"), encoding="utf-8")
    _, study = make_study(tmp_path / "s", wording=str(own))
    assert study.questions == ("humour", "diversity") and study.wording.title == load_wording("zh").title
    own.write_text(shipped.replace("undo:", "undone:"), encoding="utf-8")
    with pytest.raises(PolyReplyError, match=r"undone.*\n.*undo is missing"):
        load_wording(str(own))


def test_answers_of_a_study_open_only_with_it(tmp_path):
    folder, study = make_study(tmp_path)
    (folder / "judgements.sqlite").unlink()
    with pytest.raises(PolyReplyError, match="no such file"):
        open_answers(folder, study)
