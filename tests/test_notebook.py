"""The notebook of the docs runs in a real kernel and shows the training live, in one output that is updated."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebooks" / "train.ipynb"
SMALLER = {"steps=40": "steps=2", "rows=1000": "rows=400", "every=10": "every=1", 'rows=50"': 'rows=5"'}


def test_the_notebook_shows_usage_and_replies_live(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        for old, new in SMALLER.items():
            cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    [training] = [cell for cell in notebook.cells if "model = train(" in cell.source]
    [shown] = [output for output in training.outputs if output.output_type == "display_data"]
    text = shown.data["text/html"]
    assert "step 2/2" in text and "validation at step 2" in text and text.count("10.0 %") >= 10
    [replies] = [cell for cell in notebook.cells if "print(reply.decoder" in cell.source]
    assert len(replies.outputs[0].text.splitlines()) == 10
    [scores] = [cell for cell in notebook.cells if "print(evaluate(" in cell.source]
    printed = "".join(output.text for output in scores.outputs if output.output_type == "stream")
    assert "BLEU2-F" in printed and "tok:wordpunct" in printed
