"""PolyReply and its folder: round trips in a new process, errors that say what was expected, replies, the card."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from pair import SENTENCES, pair, shaken, t5, tokenizer
from safetensors.torch import load_file, save_file
from tiny import VARIANTS, samples
from tiny import model as tiny_model
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, GenerationConfig

from polyreply import Dialogue, PolyReply, PolyReplyConfig, PolyReplyModel, Reply
from polyreply.decoding.all_decoders import decode
from polyreply.errors import PolyReplyError
from polyreply.model.backbones import load_backbone
from polyreply.model.card import CardFacts, Example
from polyreply.model.score import nll_NK

MESSAGE = SENTENCES[0]


def outputs(model):
    """Likelihoods, greedy responses and priors to the last bit, as text."""
    found = []
    for seed in range(2):
        batch = samples(seed)
        config = GenerationConfig(max_new_tokens=9, eos_token_id=1)
        replies = decode(model, batch.context_NS, batch.context_mask_NS, config)
        with torch.no_grad():
            prior = model.log_prior(model.encode(batch.context_NS, batch.context_mask_NS))
        found += [nll_NK(model, batch).tolist(), prior.tolist()]
        found += [[(one.tokens, one.logprob.hex()) for one in row] for row in replies]
    return json.dumps(found)


def in_new_process(*folders):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from transformers import AutoModel\n"
        "from test_api import outputs\n"
        "for path in sys.argv[2:]: print(outputs(AutoModel.from_pretrained(path)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def untied_folder(path):
    """A T5 with an output layer of its own and no scaling of what goes into it, as Flan-T5 is saved."""
    t5().save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    head = torch.randn(len(tokenizer()), 12, generator=torch.Generator().manual_seed(1))
    save_file({**weights, "lm_head.weight": head}, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    del config["scale_decoder_outputs"]
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "model"
    pair().save_pretrained(path)
    return path


# --- an ordinary Transformers model


@pytest.mark.parametrize("name, settings", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_saved_model_computes_the_same_to_the_last_bit(tmp_path, name, settings, dtype):
    model = tiny_model(name, dtype=dtype, **settings)
    model.save_pretrained(tmp_path)
    loaded = PolyReplyModel.from_pretrained(tmp_path)
    assert loaded.dtype == dtype and not loaded.training
    assert outputs(loaded) == outputs(model)


def test_a_saved_model_computes_the_same_in_a_new_process(tmp_path):
    backbone, _ = load_backbone(untied_folder(tmp_path / "backbone"))
    models = [
        tiny_model("llama", dtype=torch.float64, prior="learned"),
        tiny_model("bart", dtype=torch.float64, architecture="multi-decoder"),
        shaken(PolyReplyModel.from_backbone(backbone, num_decoders=2)),
    ]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    assert in_new_process(*(tmp_path / str(number) for number in range(3))) == [outputs(model) for model in models]


def test_weights_load_as_any_type_and_on_a_device(folder):
    loaded = PolyReplyModel.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert PolyReply.from_pretrained(folder, dtype="float64", device="cpu").model.dtype == torch.float64
    assert PolyReply.from_pretrained(folder).to("meta").device.type == "meta"
    with pytest.raises(PolyReplyError, match="expected a dtype such as float32 or bfloat16, found 'float7'"):
        PolyReply.from_pretrained(folder, dtype="float7")


def test_auto_classes_know_it(folder):
    assert isinstance(AutoConfig.from_pretrained(folder), PolyReplyConfig)
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, PolyReplyModel) and not info["missing_keys"]


def test_the_learned_prior_is_saved_with_the_model(tmp_path):
    model = tiny_model(prior="learned")
    model.save_pretrained(tmp_path)
    batch = samples()
    log_prior = [
        made.log_prior(made.encode(batch.context_NS, batch.context_mask_NS))
        for made in (model, PolyReplyModel.from_pretrained(tmp_path))
    ]
    assert torch.equal(*log_prior) and log_prior[0].std() > 0.1


def test_the_generation_config_is_saved_with_the_model(folder):
    loaded = PolyReplyModel.from_pretrained(folder)
    assert loaded.generation_config.max_new_tokens == 8
    assert loaded.generation_config is loaded.backbone.generation_config
    loaded.generation_config = GenerationConfig(max_new_tokens=2)
    assert loaded.backbone.generation_config.max_new_tokens == 2


@pytest.mark.parametrize("settings", [{}, {"architecture": "multi-decoder"}], ids=str)
@pytest.mark.parametrize("loader", [load_backbone, lambda path: (AutoModelForSeq2SeqLM.from_pretrained(path), None)])
def test_an_output_layer_of_its_own_survives(tmp_path, settings, loader):
    backbone, _ = loader(untied_folder(tmp_path / "backbone"))
    assert backbone.lm_head.weight is not backbone.shared.weight and not backbone.config.scale_decoder_outputs
    model = shaken(PolyReplyModel.from_backbone(backbone, num_decoders=2, **settings))
    before = outputs(model)
    for generation in ("first", "second"):
        model.save_pretrained(tmp_path / generation)
        model = PolyReplyModel.from_pretrained(tmp_path / generation)
        model.tie_weights()
        assert outputs(model) == before


# --- what cannot be loaded


def copied(folder, tmp_path, **changes):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def refused(path, kind=PolyReplyModel):
    with pytest.raises(PolyReplyError) as caught:
        kind.from_pretrained(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_backbone_is_refused(tmp_path):
    t5().save_pretrained(tmp_path)
    assert "expected a K-decoder model" in refused(tmp_path)
    assert "found a plain t5 model; build a K-decoder model on it with PolyReplyModel.from_backbone" in refused(
        tmp_path
    )


@pytest.mark.parametrize("architecture", ["multi-adapter", "multi-decoder"])
@pytest.mark.parametrize("claimed", [1, 2, 5])
def test_weights_of_another_k_are_refused(tmp_path, architecture, claimed):
    pair(architecture=architecture).save_pretrained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    message = refused(copied(tmp_path / "a", tmp_path / "b", num_decoders=claimed))
    assert f"expected the weights of {claimed} decoders" in message and "found those of 3" in message


def test_a_later_schema_is_refused(folder, tmp_path):
    message = refused(copied(folder, tmp_path, schema_version=2))
    assert "has schema version 2, and this polyreply reads up to 1; upgrade polyreply" in message


@pytest.mark.parametrize(
    "content",
    [lambda data: data[: len(data) // 2], lambda data: data[:-1], lambda data: b"", lambda data: b"a text file\n" * 9],
    ids=["half", "one byte short", "empty", "text"],
)
def test_a_damaged_file_is_refused(folder, tmp_path, content):
    path = copied(folder, tmp_path) / "model.safetensors"
    path.write_bytes(content(path.read_bytes()))
    assert "expected a folder with a config.json and a complete model.safetensors" in refused(tmp_path)


def test_other_tensors_are_refused(folder, tmp_path):
    save_file({"something.else": torch.zeros(3)}, copied(folder, tmp_path) / "model.safetensors", {"format": "pt"})
    message = refused(tmp_path)
    assert "to hold the weights of its config.json (multi-adapter, 3 decoders, t5)" in message
    assert "missing (such as adapters.0.b1_KD), 1 unknown (such as something.else)" in message


@pytest.mark.parametrize(
    "name, message",
    [
        ("config.json", "with a config.json, found none"),
        ("model.safetensors", "as model.safetensors in"),
        ("tokenizer.json", "expected a tokenizer (tokenizer.json)"),
    ],
)
def test_a_missing_file_is_named(folder, tmp_path, name, message):
    copied(folder, tmp_path)
    (tmp_path / name).unlink()
    if name == "tokenizer.json":
        (tmp_path / "tokenizer_config.json").unlink()
    assert message in refused(tmp_path, PolyReply)


def test_pickles_are_not_read(folder, tmp_path):
    copied(folder, tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "found pytorch_model.bin" in refused(tmp_path)


def test_no_folder_and_no_such_model_are_one_line(tmp_path):
    assert "no model at" in refused(tmp_path / "nothing")
    assert "found the file" in refused(Path(__file__))
    assert "cannot load a K-decoder model from 'no-one/no-model'" in refused("no-one/no-model")


# --- PolyReply


def test_the_folder_is_complete_and_nothing_more(folder):
    names = {path.name for path in folder.iterdir()}
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json"}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "README.md", *tokenizer_files}


def test_a_folder_is_replaced_only_when_it_is_ours_and_told_to(folder, tmp_path):
    made = pair(max_new_tokens=3)
    copied(folder, tmp_path)
    with pytest.raises(PolyReplyError, match="not empty"):
        made.save_pretrained(tmp_path)
    made.save_pretrained(tmp_path, overwrite=True)
    assert PolyReply.from_pretrained(tmp_path).model.generation_config.max_new_tokens == 3
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(PolyReplyError, match="something else"):
        made.save_pretrained(tmp_path, overwrite=True)


def test_replies_are_those_of_each_decoder(folder):
    made = PolyReply.from_pretrained(folder)
    replies = made.reply(MESSAGE)
    assert replies == pair().reply(MESSAGE)
    ids = tokenizer()(MESSAGE, return_tensors="pt").input_ids  # one message is its tokens and </s>
    [expected] = decode(made.model, ids, torch.ones_like(ids))
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
def test_what_is_no_context_is_refused(context):
    with pytest.raises(PolyReplyError, match="expected a text, a tuple of turns or a Dialogue"):
        pair().reply(context)


def test_options_go_on_top_of_the_generation_config():
    made = pair()
    ids = tokenizer()(MESSAGE, return_tensors="pt").input_ids
    [whole] = decode(made.model, ids, torch.ones_like(ids))
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
        ({"decode": "magic"}, "expected decode to be one of decoders, beam, nucleus, diverse-beam, found 'magic'"),
        ({"k": 4}, "expected k from 1 to 3, the number of decoders, found 4"),
        ({"decode": "beam", "k": 0}, "expected k of 1 or more"),
        ({"max_new_token": 3}, "did you mean max_new_tokens?"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
        ({"temperature": 0.5}, "temperature: no effect without sampling"),
        ({"decode": "beam", "top_p": 0.5}, "top_p: no effect without sampling"),
        ({"do_sample": True, "temperature": -1.0}, "temperature"),
        ({"num_beams": 4}, "not supported here: num_beams"),
        ({"m": 0}, "m must be 1 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options, message):
    with pytest.raises(PolyReplyError) as caught:
        pair().reply(MESSAGE, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["beam", "nucleus", "diverse-beam"])
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


# --- the card


def front_matter(text):
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_card_says_what_is_known_and_no_more(folder):
    head, body = front_matter((folder / "README.md").read_text())
    assert head == {
        "library_name": "polyreply",
        "pipeline_tag": "text2text-generation",
        "tags": ["polyreply", "dialogue", "diverse-generation", "multi-adapter"],
    }
    parameters = sum(parameter.numel() for parameter in pair().model.parameters())
    assert f"| parameters | {parameters:,} |" in body and "| decoders (K) | 3 |" in body and "| backbone | t5 |" in body
    assert not any(word in body for word in ("## Data", "## Recipe", "## Scores", "## Example", "None"))


def test_the_card_tells_data_recipe_scores_and_examples(tmp_path):
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


def test_the_model_alone_goes_the_way_of_transformers(hub, folder):
    PolyReplyModel.from_pretrained(folder).push_to_hub("alone")
    assert {"config.json", "generation_config.json", "model.safetensors"} <= set(hub["someone/alone"])
