"""Which score files are one system, and what systems without a name are called."""

import pytest
from test_compare import scores

from polyreply.errors import PolyReplyError
from polyreply.metrics.systems import read_systems


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes score files given as `path` or `path:name`, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    content = scores(0.5, references=[["a b c"]])

    def write(*files):
        for file in files:
            path, _, name = file.partition(":")
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            type(content)(**{**vars(content), "system": name}).save(tmp_path / path)

    return write


@pytest.mark.parametrize(
    "files, arguments, names",
    [
        (["beam.json", "good.json.gz"], None, {"beam": 1, "good": 1}),
        (["r1/scores.json", "r2/scores.json"], None, {"r1": 1, "r2": 1}),
        (["r1/scores.json", "r2/scores.json", "b.json"], None, {"r1/scores": 1, "r2/scores": 1, "b": 1}),
        (["x/r/scores.json", "y/r/scores.json"], None, {"x/r": 1, "y/r": 1}),
        (["x/r/s.json", "y/r/s.json", "s.json", "t.json"], None, {"x/r/s": 1, "y/r/s": 1, "{here}/s": 1, "t": 1}),
        (["a.json", "a.json.gz"], None, {"a.json": 1, "a.json.gz": 1}),
        (["1.json:ours", "r/ours.json"], None, {"ours": 1, "r/ours": 1}),
        (["1.json:ours", "2.json:ours", "r1/3.json:ours"], None, {"ours": 3}),
        (["1.json:a", "2.json:b", "3.json"], ["x=1.json,2.json", "x=3.json"], {"x": 3}),
        (["r1/s.json", "r2/s.json"], ["x=r1/s.json,r2/s.json"], {"x": 2}),
        (["lr=3,k=4.json"], None, {"lr=3,k=4": 1}),
        (["lr=3,k=4.json"], ["x=lr=3,k=4.json"], {"x": 1}),
        (["1.json"], ["two\n words\t=1.json"], {"two words": 1}),
        (["1.json:a\r\nb\x1b", "2.json: "], None, {"a b�": 1, "2": 1}),
    ],
)
def test_names(tmp_path, write, files, arguments, names):
    write(*files)
    found = read_systems(arguments or [file.partition(":")[0] for file in files])
    assert {one.name: len(one.seeds) for one in found} == {
        name.replace("{here}", tmp_path.name): count for name, count in names.items()
    }


def test_mistakes(write):
    write("a.json")
    with pytest.raises(PolyReplyError, match="expected each score file once"):
        read_systems(["a.json", "x=a.json"])
    with pytest.raises(PolyReplyError, match=r"none\.json: there is no such file"):
        read_systems(["x=none.json"])
