"""When requests join those that run."""

import torch

from polyreply.decoding.continuous import Job
from polyreply.decoding.generate import check_request
from polyreply.reply import PolyReply
from polyreply.serve.engine import _MOST_WAITED, Ask, Engine
from polyreply.serve.metrics import Metrics
from polyreply.serve.settings import ServeSettings


def test_a_single_newcomer_waits_for_others_but_not_long(folder):
    polyreply = PolyReply.from_pretrained(folder)
    engine = Engine(polyreply, ServeSettings(name="tiny"), Metrics())
    decoding = check_request(polyreply.model, "decoders", 1, 0, {}, eos=polyreply.tokenizer.eos_token_id)

    def arrive():
        ask = Ask([Job(torch.tensor([5, 6]), [0], decoding)])
        engine._waiting.append((ask, 0))
        return ask.jobs[0]

    first = arrive()
    assert engine._admit()[0] == [first]  # nothing runs, so there is nothing to wait for
    engine._running = {number: (Ask(), 0) for number in range(16)}
    second = arrive()
    assert [engine._admit()[0] for _ in range(_MOST_WAITED)] == [[]] * _MOST_WAITED
    assert engine._admit()[0] == [second]
    several = [arrive(), arrive(), arrive()]
    assert engine._admit()[0] == several
    beam = Ask(works=[lambda model: None])  # reads its context by itself, so it has nobody to wait for
    engine._waiting.append((beam, 0))
    assert engine._admit() == ([], beam)
