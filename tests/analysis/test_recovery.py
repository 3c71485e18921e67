"""Mode recovery: its measures on a model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import K, recipe, train

from polyreply import PolyReply
from polyreply.analysis.recovery import measure_recovery
from polyreply.em.posterior import captured


@pytest.mark.parametrize("num_decoders", [2, 10])
def test_captured_is_0_when_decoders_are_alike_and_1_when_one_explains_all(num_decoders):
    nll_N = np.array([3.0, 700.0])
    assert captured(np.tile(nll_N[:, None], num_decoders)) == pytest.approx(0, abs=1e-12)
    assert captured(np.where(np.eye(2, num_decoders), nll_N[:, None], nll_N[:, None] + 800)) == pytest.approx(1)


@given(st.lists(st.lists(st.floats(0, 1000), min_size=3, max_size=3), min_size=1, max_size=5))
def test_captured_is_a_share(rows):
    assert -1e-9 <= captured(np.array(rows)) <= 1 + 1e-9


def test_a_model_is_measured_on_pairs_it_has_not_seen(corpus, stage1, tmp_path):
    model = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "optimizer.learning_rate=0.05"))
    found = measure_recovery(PolyReply.from_pretrained(model), corpus / "valid.jsonl", pairs=20, contexts=4)
    assert len(found.usage) == K and sum(found.usage) == pytest.approx(1)
    assert 0 < found.captured < 1 and 1 / K < found.max_posterior < 1 and found.best_nll <= found.mixture_nll
    assert 0 <= found.acts <= K and len(found.act_shares) == K and all(len(row) == 10 for row in found.act_shares)
    plain = measure_recovery(PolyReply.from_pretrained(stage1), corpus / "valid.jsonl", pairs=20, contexts=4)
    assert plain.usage == [1] and plain.captured == 0 and plain.best_nll == pytest.approx(plain.mixture_nll)
