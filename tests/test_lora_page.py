"""The example of docs/lora.md, with the real SmolLM2, and what PEFT makes of its result."""

import re
from pathlib import Path

import peft
import torch

from polyreply import PolyReply
from polyreply.data.context_format import encode_contexts
from polyreply.models.backbones import load_backbone
from polyreply.peft_folders import export_peft

PAGE = Path(__file__).parent.parent / "docs" / "lora.md"


def test_your_own_model_in_ten_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {}
    exec(example, names)
    said = [line for line in capsys.readouterr().out.splitlines() if re.match(r"[012] \S", line)]
    assert len(said) == 3
    assert sum(file.stat().st_size for file in Path("runs/mine/model").glob("*.safetensors")) < 20_000_000
    loaded = PolyReply.from_pretrained("runs/mine/model")
    question = "Shall we go for a walk?"
    replies = loaded.reply(question, max_new_tokens=12)
    assert [f"{reply.decoder} {reply.text}" for reply in replies] == said

    folders = export_peft(loaded, tmp_path / "exported")
    backbone_folder = peft.LoraConfig.from_pretrained(folders[0]).base_model_name_or_path
    assert Path(backbone_folder, "config.json").is_file(), "other tools find the backbone there"
    ids = torch.from_numpy(encode_contexts(loaded.tokenizer, [(question,)], loaded.model.config.format())[0][0]).long()
    backbone, _ = load_backbone("smollm2-135m-pip")
    decoder = peft.PeftModel.from_pretrained(backbone, folders[2]).eval()
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids[None])}
    tokens = decoder.generate(input_ids=ids[None], **options)[0, len(ids) :]
    assert loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip() == replies[2].text
