"""Manners: a decoder is named after what it does clearly more often than the others."""

from itertools import cycle, islice

from polyreply.analysis.manners import find_manners


def replies(*decoders, contexts=60):
    """Replies of decoders that each repeat a few lines."""
    return list(zip(*(islice(cycle(lines), contexts) for lines in decoders), strict=True))


def test_decoders_are_named_after_what_they_do():
    lines = find_manners(
        replies(
            ["What do you mean by that?", "Where did you go after?", "Why is it so late?"],
            ["No, it has been raining here.", "I don't like cold water much.", "Not on a working day."],
            ["Yes, the water is warm today.", "Sure, let us leave at noon.", "Of course, there is time."],
            ["The train leaves at noon.", "Water is good with lemon.", "There is rain in the air."],
            ["Maybe the rain will stop.", "It depends on the train.", "The water might be cold."],
        )
    )
    assert [line.split(",")[0] for line in lines[:3]] == ["asks back", "declines", "agrees"]
    assert "hedges" in lines[4] and "hedges" not in " ".join(lines[:4])


def test_length_is_a_manner_too():
    short, usual = ["It is.", "Fine."], ["The bus was late again.", "We walked along the river."]
    long = ["The bus was late again so we walked along the river until the lights came on and it was dark."]
    lines = find_manners(replies(short, usual, usual, long))
    assert lines[0] == "is brief" and lines[3] == "says more"


def test_words_stand_in_where_nothing_else_is_clear():
    lines = find_manners(replies(["The bread is fresh."], ["The milk is fresh."], ["The fish is fresh."]))
    assert ["bread" in lines[0], "milk" in lines[1], "fish" in lines[2]] == [True] * 3


def test_equal_decoders_are_like_the_others():
    same = ["The bread is fresh.", "It is late."]
    assert find_manners(replies(same, same)) == ["like the others"] * 2


def test_polite_words_are_no_refusal_and_one_decoder_has_no_manner():
    polite = ["Sorry to hear that, dear.", "No problem at all.", "Not bad, thanks.", "Not sure what it is."]
    lines = find_manners(replies(polite, ["The bread is fresh here.", "It is late now."]))
    assert "declines" not in lines[0]
    assert find_manners(replies(polite)) == ["like the others"]


def test_ways_to_take_part_in_what_somebody_tells():
    lines = find_manners(
        replies(
            ["Take a warm bath first.", "Don't carry it alone.", "Try the other shop."],
            ["I'll bring you some soup.", "Let's paint it together.", "Want me to call them?"],
            ["You'll be fine by Friday.", "It will grow back.", "Soon the pain is gone."],
            ["I once had a cold like it.", "My sister lost hers too.", "Mine broke last year."],
            ["Have you told her?", "I'm too tired for it.", "We're too late for it."],
        )
    )
    expected = ["advises", "offers help", "looks ahead", "knows it too"]
    assert [name in line for name, line in zip(expected, lines, strict=False)] == [True] * 4
    assert not any(name in line for name in expected for line in lines if line is not lines[expected.index(name)])
