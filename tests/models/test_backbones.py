"""Backbones: loaded from folders written here, built from a recipe, and dequantised from the package index."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
import transformers

from polyreply.data.tokenizer import train_tokenizer
from polyreply.errors import MissingExtraError, PolyReplyError, RecipeError
from polyreply.models import flan_t5_pip
from polyreply.models.backbones import FLAN, MiniConfig, backbone_tokenizer, build_mini, load_backbone

TINY = MiniConfig(d_model=12, d_ff=16, num_layers=1, num_decoder_layers=2, num_heads=2, d_kv=6)
TURNS = ["how are you?", "fine, thanks", "where do you live?", "in a small house"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TURNS, vocab_size=400)


def saved(model, folder, *more):
    for part in (model, *more):
        part.save_pretrained(folder)
    return folder


def gpt2():
    sizes = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 1, "bos_token_id": 1, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def bert():
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    return transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=1, **sizes))


def one_line(call, *arguments, kind=PolyReplyError, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- mini ---


def test_the_default_mini_has_the_size_its_recipe_says():
    model = build_mini(MiniConfig(), 8000)
    attention, feed_forward = 4 * 256 * 256, 2 * 256 * 1024
    encoder = 4 * (attention + feed_forward + 2 * 256)
    decoder = 4 * (2 * attention + feed_forward + 3 * 256)
    assert model.num_parameters() == 8000 * 256 + encoder + decoder + 2 * 256 + 2 * 32 * 4
    assert model.lm_head.weight is model.shared.weight


def test_mini_ids_follow_the_tokenizer(tokenizer):
    model = build_mini(TINY, len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    assert not model.training
    for settings in (model.config, model.generation_config):
        assert (settings.decoder_start_token_id, settings.pad_token_id, settings.eos_token_id) == (0, 0, 1)
    assert [block.layer[-1].dropout.p for block in model.decoder.block] == [0.1, 0.1]


def test_mini_depends_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_mini(TINY, 50, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = build_mini(TINY, 50, seed=3).state_dict(), build_mini(TINY, 50, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["shared.weight"], other["shared.weight"])


def test_mini_learns_replies(tokenizer):
    """From text to text: the ids, the shift to the right, the end of a reply."""
    model = build_mini(dataclasses.replace(TINY, d_model=32, dropout=0.0), len(tokenizer))
    contexts = tokenizer(TURNS[::2], padding=True, return_tensors="pt")
    labels = tokenizer(TURNS[1::2], padding=True, return_tensors="pt").input_ids
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        model(**contexts, labels=labels.masked_fill(labels == 0, -100)).loss.backward()
        optimizer.step()
    replies = model.eval().generate(**contexts, max_new_tokens=30, do_sample=False)
    assert tokenizer.batch_decode(replies, skip_special_tokens=True) == TURNS[1::2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"num_heads": 3}, None),
        ({"dropout": 0.0}, None),
        ({"d_kv": 0}, "d_kv is 0, and a model needs 1 or more; raise it"),
        ({"num_decoder_layers": -1}, "num_decoder_layers is -1, and a model needs 1 or more; raise it"),
        ({"dropout": 1.0}, "dropout 1.0 is not a share from 0 to below 1; use 0.1, or 0 for none"),
    ],
)
def test_mini_problems(change, problem):
    recipe = dataclasses.replace(TINY, **change)
    assert list(recipe.problems()) == [problem][: problem is not None]
    if problem:
        assert problem in one_line(build_mini, recipe, 50, kind=RecipeError)


def test_mini_refuses_ids_outside_the_vocabulary():
    message = one_line(build_mini, TINY, 50, eos_token_id=50, kind=RecipeError)
    assert "pad 0 and eos 50 must be tokens of a vocabulary of 50" in message
    assert "both token 0" in one_line(build_mini, TINY, 50, eos_token_id=0, kind=RecipeError)


# --- any name or folder ---


def test_a_saved_mini_comes_back_with_its_tokenizer(tmp_path, tokenizer):
    model = build_mini(TINY, len(tokenizer))
    loaded, its_tokenizer = load_backbone(saved(model, tmp_path, tokenizer))
    assert not loaded.training and loaded.generation_config.decoder_start_token_id == 0
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in loaded.state_dict().items())
    assert its_tokenizer(TURNS[0]).input_ids == tokenizer(TURNS[0]).input_ids


def test_a_folder_without_a_tokenizer_gives_none(tmp_path):
    assert load_backbone(str(saved(build_mini(TINY, 50), tmp_path)))[1] is None


def test_a_decoder_only_model(tmp_path):
    loaded, _ = load_backbone(saved(gpt2(), tmp_path))
    assert type(loaded).__name__ == "GPT2LMHeadModel" and not loaded.training
    assert loaded.generation_config.eos_token_id == 1


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
def test_dtype(tmp_path, dtype):
    model = build_mini(TINY, 50).to(torch.bfloat16)
    loaded, _ = load_backbone(saved(model, tmp_path), dtype=dtype)
    assert loaded.dtype == getattr(torch, dtype or "bfloat16")


def test_a_separate_output_layer_stays_separate(tmp_path, capfd):
    model = build_mini(TINY, 50)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(50, 12, generator=torch.Generator().manual_seed(0)))
    saved(model, tmp_path / "first")
    loaded, _ = load_backbone(tmp_path / "first")
    assert "tie" not in capfd.readouterr().err
    loaded.tie_weights()
    saved(loaded, tmp_path / "second")
    again, _ = load_backbone(tmp_path / "second")
    ids = torch.tensor([[3, 4, 1]])
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert torch.equal(again(input_ids=ids, labels=ids).logits, model(input_ids=ids, labels=ids).logits)


def test_loading_leaves_the_verbosity_of_transformers(tmp_path):
    before = transformers.logging.get_verbosity()
    load_backbone(saved(gpt2(), tmp_path))
    assert transformers.logging.get_verbosity() == before


def test_a_missing_weight_is_an_error(tmp_path):
    from safetensors.torch import load_file, save_file

    saved(build_mini(TINY, 50), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["decoder.final_layer_norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "1 missing, the first decoder.final_layer_norm.weight" in one_line(load_backbone, tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    settings = {"model_type": "custom", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "custom code" in one_line(load_backbone, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_not_read(tmp_path):
    model = build_mini(TINY, 50)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert "safetensors" in one_line(load_backbone, tmp_path).split("found:")[1]


def test_a_masked_language_model_is_refused(tmp_path):
    assert "a bert that is neither" in one_line(load_backbone, saved(bert(), tmp_path))


def test_a_truncated_file(tmp_path):
    saved(build_mini(TINY, 50), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert one_line(load_backbone, tmp_path).startswith("cannot load a backbone from")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "model_type"), ("{not json", "not a valid JSON"), ('{"a": 1}', "model_type"), ("[1]", "found:")],
)
def test_a_foreign_folder(tmp_path, content, expected):
    if content:
        (tmp_path / "config.json").write_text(content)
    assert expected in one_line(load_backbone, tmp_path)


def test_missing_files_and_folders(tmp_path):
    (tmp_path / "file").touch()
    assert "found the file" in one_line(load_backbone, tmp_path / "file")
    assert "check the path" in one_line(load_backbone, tmp_path / "nothing")
    assert "check the path" in one_line(load_backbone, "./nothing")
    assert "couldn't connect" in one_line(load_backbone, "nobody/nothing")
    assert "found 'int8'" in one_line(load_backbone, tmp_path, dtype="int8")


# --- flan-t5-small-pip ---

GERMAN = "translate English to German: The house is wonderful."


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "traceforge_title_model", None)
    for call in (load_backbone, backbone_tokenizer):
        message = one_line(call, FLAN, kind=MissingExtraError)
        assert "traceforge-title-model" in message and "polyreply[flan]" in message


@pytest.fixture(scope="module")
def flan():
    pytest.importorskip("onnx")
    pytest.importorskip("traceforge_title_model")
    return load_backbone(FLAN)


def test_every_parameter_of_flan_is_filled(flan):
    model, _ = flan
    weights = flan_t5_pip.flan_weights()
    parameters = dict(model.named_parameters())
    assert weights.keys() - parameters.keys() == {"encoder.embed_tokens.weight"}  # the same as shared.weight
    assert parameters.keys() <= weights.keys()
    assert all(np.array_equal(parameters[name].detach().numpy(), weights[name]) for name in parameters)
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight is model.shared.weight
    assert np.array_equal(weights["encoder.embed_tokens.weight"], weights["shared.weight"])
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    assert model.num_parameters() == 76_961_152 and not model.training


def in_floats(path):
    """Make the package's own graph independent of us: weights dequantised by ONNX, activations left in float.

    Each MatMulInteger with the Cast and the Mul behind it becomes DequantizeLinear and MatMul; the scale is found by
    following the graph, not by its name.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    model.opset_import[0].version = 19  # the evaluator has no DequantizeLinear of version 18
    initializers = {tensor.name for tensor in model.graph.initializer}
    maker = {output: node for node in model.graph.node for output in node.output}
    user = {name: node for node in model.graph.node for name in node.input}
    swaps = {}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":
            product = user[user[node.output[0]].output[0]]
            scales = next(maker[name] for name in product.input if maker[name].op_type == "Mul")
            scale = next(name for name in scales.input if name in initializers)
            weight = f"{node.name}_float"
            swaps[product.name] = [
                onnx.helper.make_node("DequantizeLinear", [node.input[1], scale, node.input[3]], [weight]),
                onnx.helper.make_node("MatMul", [maker[node.input[0]].input[0], weight], product.output),
            ]
            swaps[node.name] = swaps[user[node.output[0]].name] = []
    nodes = [new for node in model.graph.node for new in swaps.get(node.name, [node])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return ReferenceEvaluator(model)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the log of 0 in the buckets of relative positions
def test_flan_computes_what_the_graphs_compute(flan):
    from traceforge_title_model import span_dir

    model, tokenizer = flan
    inputs = tokenizer([GERMAN, "a much shorter text"], padding=True, return_tensors="pt")
    decoder_input_ids = torch.tensor([[0, 644, 4598, 229, 30955, 5]] * 2)
    mask = inputs.attention_mask.numpy()
    feed = {"input_ids": inputs.input_ids.numpy(), "attention_mask": mask}
    (hidden,) = in_floats(span_dir() / "encoder.onnx").run(None, feed)
    feed = {"input_ids": decoder_input_ids.numpy(), "encoder_hidden_states": hidden, "encoder_attention_mask": mask}
    (logits,) = in_floats(span_dir() / "decoder.onnx").run(None, feed)
    with torch.no_grad():
        ours = model(**inputs, decoder_input_ids=decoder_input_ids)
    np.testing.assert_allclose(ours.encoder_last_hidden_state.numpy()[mask == 1], hidden[mask == 1], atol=5e-6)
    np.testing.assert_allclose(ours.logits.numpy(), logits, atol=5e-4)
    assert np.abs(hidden[mask == 1]).max() > 0.3 and np.abs(logits).max() > 20


def test_flan_translates(flan):
    model, tokenizer = flan
    output = model.generate(**tokenizer(GERMAN, return_tensors="pt"), max_new_tokens=20, do_sample=False)
    assert tokenizer.decode(output[0], skip_special_tokens=True) == "Das Haus ist wunderbar."


def test_flan_tokenizer_neither_truncates_nor_pads(flan):
    _, tokenizer = flan
    text = " ".join(["house"] * 300)
    fresh = backbone_tokenizer(FLAN).backend_tokenizer  # before a call through Transformers, which would reset both
    assert [len(encoded.ids) for encoded in fresh.encode_batch(["house", text])] == [2, 301]
    assert tokenizer(text).input_ids == [629] * 300 + [1]
    assert [len(ids) for ids in tokenizer(["house", text]).input_ids] == [2, 301]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert len(tokenizer) == 32100 and (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


def test_flan_survives_saving(flan, tmp_path):
    model, tokenizer = flan
    loaded, its_tokenizer = load_backbone(saved(model, tmp_path, tokenizer), dtype="bfloat16")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.to(torch.bfloat16))
    assert not loaded.config.scale_decoder_outputs
    assert its_tokenizer(GERMAN * 9).input_ids == tokenizer(GERMAN * 9).input_ids


def test_one_scale_per_column_is_broadcast_over_the_rows():
    tensors = {
        "w_quantized": np.array([[-128, 10], [127, 20]], np.int8),
        "w_zero_point": np.array([-1, 10], np.int8),
        "w_scale": np.array([0.5, 2.0], np.float32),
    }
    assert flan_t5_pip._dequantised("w", tensors).tolist() == [[-63.5, 0.0], [64.0, 20.0]]
