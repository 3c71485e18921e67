"""The model card, and the way to the Hugging Face hub."""

from pathlib import Path

import pytest
import yaml
from pair import SENTENCES, pair

from polyreply import PolyReply, PolyReplyModel
from polyreply.models.card import CardFacts, Example

MESSAGE = SENTENCES[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "model"
    pair().save_pretrained(path)
    return path


def front_matter(text):
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_card_leaves_out_what_is_unknown(folder):
    head, body = front_matter((folder / "README.md").read_text())
    assert head == {
        "library_name": "polyreply",
        "pipeline_tag": "text2text-generation",
        "tags": ["polyreply", "dialogue", "diverse-generation", "multi-adapter"],
    }
    parameters = sum(parameter.numel() for parameter in pair().model.parameters())
    assert f"| parameters | {parameters:,} |" in body and "| decoders (K) | 3 |" in body and "| backbone | t5 |" in body
    assert not any(word in body for word in ("## Data", "## Recipe", "## Scores", "## Example", "None"))


def test_the_card_shows_data_recipe_scores_and_examples(tmp_path):
    made = pair()
    facts = CardFacts(
        title="Chatty",
        data="A *corpus*.",
        language="en",
        recipe={"method": "eqhard-em", "steps": 3},
        scores={"bleu2_f": 7.256},
        signature="bleu|v1",
        examples=(Example(("a | b\nc",), ("<x>",)),),
    )
    made.save_pretrained(tmp_path / "a", card=facts, examples=[MESSAGE])
    head, body = front_matter((tmp_path / "a/README.md").read_text())
    assert head["language"] == "en" and "# Chatty" in body and "A *corpus*." in body
    assert "| BLEU2-F | 7.26 |" in body and "`bleu|v1`" in body and "method: eqhard-em" in body
    assert "> a \\| b c" in body and "| 0 | \\<x\\> |" in body
    assert f"> {MESSAGE}" in body and body.count("| 2 | ") == 1
    PolyReply.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    assert (tmp_path / "b/README.md").read_bytes() == (tmp_path / "a/README.md").read_bytes()


# --- push_to_hub, against a stand-in for the hub


@pytest.fixture
def hub(monkeypatch):
    """Takes the place of the hub's two calls, and keeps what is uploaded."""
    import huggingface_hub
    from huggingface_hub.utils import EntryNotFoundError
    from transformers.utils import hub as transformers_hub

    files = {}

    def create_repo(self, repo_id, **options):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/someone/{repo_id}")

    def create_commit(self, repo_id, operations, **options):
        kept = files.setdefault(repo_id, {})
        kept.update({one.path_in_repo: Path(one.path_or_fileobj).read_bytes() for one in operations})
        return f"https://huggingface.co/{repo_id}/commit/1"

    def upload_folder(self, repo_id, folder_path, **options):
        files[repo_id] = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return f"https://huggingface.co/{repo_id}/commit/1"

    def no_card(*arguments, **options):
        raise EntryNotFoundError("no card")

    for made in (create_repo, create_commit, upload_folder):
        monkeypatch.setattr(huggingface_hub.HfApi, made.__name__, made)
    monkeypatch.setattr(transformers_hub.ModelCard, "load", no_card)
    return files


def test_push_to_hub_uploads_what_loads_alone(hub, tmp_path, folder):
    made = PolyReply.from_pretrained(folder)
    assert made.push_to_hub("chatty") == "https://huggingface.co/someone/chatty/commit/1"
    for name, data in hub["someone/chatty"].items():
        (tmp_path / name).write_bytes(data)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in folder.iterdir()}
    assert PolyReply.from_pretrained(tmp_path).reply(MESSAGE) == made.reply(MESSAGE)


def test_the_model_alone_is_pushed_by_transformers(hub, folder):
    PolyReplyModel.from_pretrained(folder).push_to_hub("alone")
    assert {"config.json", "generation_config.json", "model.safetensors"} <= set(hub["someone/alone"])
