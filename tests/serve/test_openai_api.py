"""The official client, unmodified, against a real server process."""

import asyncio
import random
import threading

import httpx2
import openai
import pytest
from pair import SENTENCES
from servers import serving

from polyreply.reply import PolyReply

K = 10
IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
ASK = {"model": "tiny", "messages": [{"role": "user", "content": SENTENCES[0]}]}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def oracle(folder):
    return PolyReply.from_pretrained(folder, dtype="float64")


def texts(answer):
    return [choice.message.content for choice in answer.choices]


def test_n_choices_are_the_replies_of_n_decoders(client, oracle):
    answer = client.chat.completions.create(**ASK, n=K)
    replies = oracle.reply(SENTENCES[0])
    assert texts(answer) == [reply.text for reply in replies] and len(set(texts(answer))) > K / 2
    assert (
        [choice.decoder for choice in answer.choices] == [choice.index for choice in answer.choices] == list(range(K))
    )
    assert [choice.logprob for choice in answer.choices] == pytest.approx([reply.logprob for reply in replies])
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens == oracle._encode([(SENTENCES[0],)])[0].shape[1]


def test_conversations_and_system_messages_reach_the_model(client, oracle):
    turns = [("assistant", SENTENCES[1]), ("user", SENTENCES[2]), ("user", SENTENCES[3])]
    messages = [{"role": role, "content": text} for role, text in turns]
    joined = (SENTENCES[1], f"{SENTENCES[2]}\n{SENTENCES[3]}")
    answer = client.chat.completions.create(model="tiny", messages=messages, n=K)
    assert texts(answer) == [reply.text for reply in oracle.reply(joined)]
    system = [{"role": "system", "content": [{"type": "text", "text": SENTENCES[0]}]}]
    changed = client.chat.completions.create(model="tiny", messages=system + messages, n=K)
    assert changed.usage.prompt_tokens > answer.usage.prompt_tokens


def test_guidance_moves_away_from_an_empty_message_after_the_same_system_message(client, folder):
    oracle = PolyReply.from_pretrained(folder, dtype="float64")
    messages = [{"role": "user", "content": SENTENCES[2]}]
    guided = {"extra_body": {"guidance_scale": 5.0}, "model": "tiny", "n": K}
    answer = client.chat.completions.create(messages=messages, **guided)
    assert texts(answer) == [reply.text for reply in oracle.reply(SENTENCES[2], guidance_scale=5.0)]
    assert texts(answer) != [reply.text for reply in oracle.reply(SENTENCES[2])]
    system = {"role": "system", "content": SENTENCES[0]}
    oracle.model.config.context_format = {**oracle.model.config.context_format, "prefix": SENTENCES[0]}
    answer = client.chat.completions.create(messages=[system, *messages], **guided)
    assert texts(answer) == [reply.text for reply in oracle.reply(SENTENCES[2], guidance_scale=5.0)]


def test_fewer_than_all_decoders_are_the_most_likely_or_the_most_different(client, oracle):
    replies = sorted(oracle.reply(SENTENCES[0]), key=lambda reply: -reply.logprob)
    assert texts(client.chat.completions.create(**ASK)) == [replies[0].text]
    assert texts(client.chat.completions.create(**ASK, n=2)) == [reply.text for reply in replies[:2]]
    different = client.chat.completions.create(**ASK, n=2, extra_body={"select": "different"})
    expected = {reply.decoder for reply in oracle.reply(SENTENCES[0], m=2)}
    assert {choice.decoder for choice in different.choices} == expected
    named = client.chat.completions.create(**ASK, extra_body={"decoders": [7, 0]})
    assert [choice.decoder for choice in named.choices] == [0, 7]


@pytest.mark.parametrize("n", [2, K])
def test_a_stream_adds_up_to_the_whole_answer(client, n):
    whole = client.chat.completions.create(**ASK, n=n, logprobs=True)
    found, tokens, order = [""] * n, [[] for _ in range(n)], []
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**ASK, n=n, stream=True, stream_options=options, logprobs=True):
        for choice in chunk.choices:
            order.append(choice.index)
            found[choice.index] += choice.delta.content or ""
            tokens[choice.index] += [one.token for one in choice.logprobs.content]
        last = chunk
    assert found == texts(whole) and last.choices == [] and last.usage == whole.usage
    assert tokens == [[one.token for one in choice.logprobs.content] for choice in whole.choices]
    assert n < K or order != sorted(order)  # interleaved, not one choice after the other


def test_sampling_is_that_of_reply_with_the_same_seed(client, oracle):
    options = {"temperature": 1.4, "top_p": 0.9, "seed": 5}
    answer = client.chat.completions.create(**ASK, n=K, **options)
    expected = oracle.reply(SENTENCES[0], do_sample=True, top_k=0, **options)
    assert texts(answer) == [reply.text for reply in expected]
    greedy = client.chat.completions.create(**ASK, n=K, temperature=0, top_p=1)
    assert texts(greedy) == texts(client.chat.completions.create(**ASK, n=K)) != texts(answer)
    free = {tuple(texts(client.chat.completions.create(**ASK, n=K, temperature=2))) for _ in range(4)}
    assert len(free) > 1


def test_max_tokens_stop_and_logprobs(client):
    whole = client.chat.completions.create(**ASK, n=K, logprobs=True, top_logprobs=2)
    for choice in whole.choices:
        content = choice.logprobs.content
        assert sum(one.logprob for one in content) == pytest.approx(choice.logprob)
        assert all(len(one.top_logprobs) == 2 for one in content)
        assert all(one.top_logprobs[0].logprob >= one.logprob - 1e-9 for one in content)
    short = client.chat.completions.create(**ASK, n=K, max_completion_tokens=2)
    assert {choice.finish_reason for choice in short.choices} == {"length"} and short.usage.completion_tokens == 2 * K
    text = next(text for text in texts(whole) if len(text) > 3)
    stopped = client.chat.completions.create(**ASK, n=K, stop=[text[1:3], "never to be found"])
    choice = stopped.choices[texts(whole).index(text)]
    assert choice.message.content == text[:1].strip() and choice.finish_reason == "stop"
    streamed = client.chat.completions.create(**ASK, n=K, stop=text[1:3], stream=True)
    pieces = [one.delta.content for chunk in streamed for one in chunk.choices if one.index == choice.index]
    assert "".join(pieces) == choice.message.content


def test_plain_completions(client, oracle):
    answer = client.completions.create(model="tiny", prompt=SENTENCES[:2], n=K, logprobs=1)
    expected = [reply.text for sentence in SENTENCES[:2] for reply in oracle.reply(sentence)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(2 * K))
    first = answer.choices[0].logprobs
    assert len(first.tokens) == len(first.token_logprobs) == len(first.top_logprobs) == len(first.text_offset)
    streamed = [""] * 2 * K
    for chunk in client.completions.create(model="tiny", prompt=SENTENCES[:2], n=K, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected


def test_many_async_clients_get_the_answers_of_one_by_one(server, oracle):
    alone = {text: [reply.text for reply in oracle.reply(text)] for text in SENTENCES}
    seeds = {seed: [r.text for r in oracle.reply(SENTENCES[0], do_sample=True, seed=seed, top_k=0)] for seed in (1, 2)}

    async def ask(client, place):
        await asyncio.sleep(random.Random(place).random() / 5)
        if place % 5 == 4:
            seed = 1 + place % 2
            answer = await client.chat.completions.create(**ASK, n=K, temperature=1, seed=seed)
            return texts(answer) == seeds[seed]
        text = SENTENCES[place % len(SENTENCES)]
        messages = [{"role": "user", "content": text}]
        return texts(await client.chat.completions.create(model="tiny", messages=messages, n=K)) == alone[text]

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, place) for place in range(60)))

    assert all(asyncio.run(all_of_them()))
    metrics = httpx2.get(f"{server.url}/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    mean = float(lines["polyreply_batch_contexts_sum"]) / float(lines["polyreply_batch_contexts_count"])
    assert mean > 1.2  # they were decoded together
    assert float(lines['polyreply_requests_total{path="/v1/chat/completions",status="200"}']) >= 60
    assert lines["polyreply_queue_length"] == "0.0" and float(lines["polyreply_generated_tokens_total"]) > 0


def test_neutral_values_are_accepted(client):
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "user": "ann", "logit_bias": {}, "tools": []}
    more = {"response_format": {"type": "text"}, "service_tier": "auto", "store": False, "modalities": ["text"]}
    answer = client.chat.completions.create(**ASK, **neutral, **more, max_completion_tokens=3, parallel_tool_calls=True)
    assert answer.choices[0].message.content is not None
    plain = client.completions.create(model="tiny", prompt=SENTENCES[0], best_of=1, echo=False, suffix="", max_tokens=3)
    assert len(plain.choices) == 1


def test_the_values_that_are_accepted_are_named_in_json(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASK, response_format={"type": "json_object"})
    assert '{"type": "text"}, null' in refused.value.body["message"]


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"n": K + 1}, openai.BadRequestError, "n"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"frequency_penalty": 0.5}, openai.BadRequestError, "frequency_penalty"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"unheard_of": 1}}, openai.BadRequestError, "unheard_of"),
        ({"extra_body": {"decoders": [0, 70]}}, openai.BadRequestError, "decoders"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"top_p": 0.5}, openai.BadRequestError, "top_p"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, openai.BadRequestError, "max_tokens"),
        ({"stop": ""}, openai.BadRequestError, "stop"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "stop"),
        ({"stop": ["a", 1]}, openai.BadRequestError, "stop.1"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, openai.BadRequestError, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, openai.BadRequestError, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, openai.BadRequestError, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 10_000}]}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 900}]}, openai.BadRequestError, "messages"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
    ],
)
def test_what_is_not_supported_is_refused(client, change, error, param):
    with pytest.raises(error) as refused:
        client.chat.completions.create(**{**ASK, **change})
    assert refused.value.body["param"] == param and refused.value.body["message"]
    assert refused.value.body["type"] == "invalid_request_error"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").num_decoders == K
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_timeouts_retries_a_full_queue_and_sigterm(endless):
    """With room for one context and a queue of one, the third request has to wait for its turn."""
    options = ("--max-batch", 1, "--max-queue", 1, "--max-tokens", 100_000)
    with serving("serve", endless, "--port", 0, "--name", "tiny", *options) as server:
        base = {"base_url": f"{server.url}/v1", "api_key": "none"}
        long = {"max_tokens": 30_000, "extra_body": {"decoders": [0]}}
        with openai.OpenAI(**base, max_retries=0) as impatient, openai.OpenAI(**base, max_retries=8) as patient:
            stream = impatient.chat.completions.create(**ASK, **long, stream=True)
            next(iter(stream))
            waiting = []
            asking = threading.Thread(target=lambda: waiting.append(patient.chat.completions.create(**ASK)))
            asking.start()
            while "polyreply_queue_length 1.0" not in httpx2.get(f"{server.url}/metrics").text:
                pass
            with pytest.raises(openai.RateLimitError) as full:
                impatient.chat.completions.create(**ASK)
            assert int(full.value.response.headers["retry-after"]) >= 1
            assert httpx2.get(f"{server.url}/ready").status_code == 503
            stream.close()
            asking.join()
            assert waiting[0].choices[0].message.content is not None
            with pytest.raises(openai.APITimeoutError):
                impatient.with_options(timeout=0.5).chat.completions.create(**ASK, **long)
            assert patient.chat.completions.create(**ASK).choices
            assert "polyreply_dropped_requests_total 2.0" in httpx2.get(f"{server.url}/metrics").text
            assert httpx2.get(f"{server.url}/ready").status_code == 200
            last = {**ASK, "max_tokens": 200, "n": K, "stream": True}
            with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=last, timeout=120) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.signal()
                assert [line for line in lines if line][-1] == "data: [DONE]"  # what runs is finished
            assert server.wait() == 0
