"""`polyreply demo` from start to end."""

import json


def test_the_demo_prepares_tokenises_and_reports(tmp_path, polyreply):
    done = polyreply("demo", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    for title in ("Cleaning", "one message, several replies", "batches of 64 rows", "What to try next"):
        assert title in done.stdout
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "chitchat",
        "smalltalk",
        "tokenizer",
    ]
    report = json.loads((tmp_path / "demo/smalltalk/report.json").read_text())
    assert report["splits"]["train"]["contexts"] >= 50_000
