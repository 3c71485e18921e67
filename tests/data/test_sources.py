"""What an INPUT may be: Hugging Face datasets by name, offline, from a cache filled beforehand; rows in memory."""

import json
import shutil
import subprocess
import sys

import pytest

from polyreply.data.dialogue import BadRows
from polyreply.data.sources import is_hub_name, rows_source


def fill_cache(cache, source, name, splits):
    """Leaves in `cache` what an earlier download of the dataset `name` would have left."""
    script = (
        "import sys, json, datasets; cache, splits = sys.argv[1], json.loads(sys.argv[2]);"
        "datasets.load_dataset('json', data_files=splits, cache_dir=cache)"
    )
    files = {split: str(path) for split, path in splits.items()}
    subprocess.run([sys.executable, "-c", script, str(source), json.dumps(files)], check=True, capture_output=True)
    [built] = source.glob("json/*/*/*/dataset_info.json")
    namespace, dataset = name.split("/")
    target = cache / f"{namespace}___{dataset}" / "default" / "0.0.0" / "abc123"
    shutil.copytree(built.parent, target)
    for file in target.glob("json-*.arrow"):
        file.rename(file.with_name(file.name.replace("json-", f"{dataset}-", 1)))
    info = json.loads((target / "dataset_info.json").read_text())
    info |= {"dataset_name": dataset, "builder_name": "cache", "config_name": "default"}
    (target / "dataset_info.json").write_text(json.dumps(info))


@pytest.fixture
def offline(tmp_path):
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_DATASETS_CACHE": str(tmp_path / "hf/datasets"),
    }


def test_a_cached_dataset_is_prepared_without_a_network(tmp_path, write_rows, polyreply, offline):
    conversations = [{"id": n, "dialog": [f"hello {n} friend", f"good day {n}", f"so long {n}"]} for n in range(30)]
    files = {
        "train": write_rows(tmp_path / "train.jsonl", conversations),
        "validation": write_rows(tmp_path / "validation.jsonl", [{"id": 99, "dialog": ["what now", "we shall see"]}]),
    }
    fill_cache(tmp_path / "hf/datasets", tmp_path / "build", "tester/talks", files)
    done = polyreply("prepare", "hf:tester/talks", "--out", tmp_path / "out", "--json", env=offline)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["read"]["rows"] == 31
    assert {name: numbers["pairs"] for name, numbers in report["splits"].items()} == {"train": 60, "valid": 1}


def test_a_dataset_that_is_not_there_is_one_clear_line(tmp_path, polyreply, offline):
    done = polyreply("prepare", "hf:tester/nothing", "--out", tmp_path / "out", env=offline)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "hf:tester/nothing" in line and "could not be loaded as a Hugging Face dataset" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "row, dialogue",
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            (("a", "b"), None),
        ),
        ({"question": "a", "answer": "b"}, (("a",), ("b",))),
        ({"prompt": ["x", "a"], "answers": ["b", "c"]}, (("x", "a"), ("b", "c"))),
        ({"answers": {"text": ["b", "c"]}, "question": "a"}, (("a",), ("b", "c"))),
    ],
)
def test_common_columns_are_understood(row, dialogue):
    [record] = rows_source("x", [row]).records(BadRows(strict=True), None)
    assert (record.turns, record.responses) == dialogue


@pytest.mark.parametrize(
    "name, is_one",
    [
        ("hf:squad", True),
        ("org/name", False),
        ("hf:org/name:config", True),
        ("data/file.jsonl", False),
        ("name", False),
        ("a/b/c", False),
    ],
)
def test_what_looks_like_a_dataset(name, is_one):
    assert is_hub_name(name) is is_one
