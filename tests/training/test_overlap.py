"""What says the same is found, whatever its case and punctuation, and what does not is let through."""

from __future__ import annotations

import pytest

from forerun.training.overlap import KeptOut, SeenPrompts

LONG = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)
SHORT = "Who played the wife in Sweet Home Alabama?"
OTHER = (
    "A train leaves the station at noon and travels sixty miles an hour. When does it arrive in the "
    "next town, which lies a hundred and eighty miles away?"
)


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"  {LONG.upper()} ",
        f"Solve this for me, please: {LONG} Show your work.",
        "and then she sold half as many clips in may how many clips did natalia sell",
        f"Tell me: {SHORT.lower()[:-1]}, and when?",
        "hi!",
        "Ｈｉ！",
    ],
)
def test_questions_are_kept_out(text: str) -> None:
    assert KeptOut([OTHER, LONG, SHORT, "Hi!"]).holds(text)


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        "then she sold half as many clips in May",  # fewer than 13 words of a longer question
        "Who played the husband in Sweet Home Alabama?",
        "Hi! What is the weather like?",  # a greeting is no question that has to be kept out
        "",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not KeptOut([LONG, SHORT, "Hi!"]).holds(text)


def test_scripts_without_spaces() -> None:
    asked = KeptOut(["日本で一番高い山は何ですか、教えてください"])
    assert asked.holds("すみません。日本で一番高い山は何ですか?")
    assert not asked.holds("日本で一番長い川は何ですか?")


def test_repetitions_are_found() -> None:
    seen = SeenPrompts(0.7)
    assert seen.take(LONG) == ""
    assert seen.take(f"{LONG}\n") == "duplicate"
    assert seen.take(LONG.lower()) == "duplicate"
    assert seen.take(LONG.replace("clips in May", "clips, in May")) == "near_duplicate"
    assert seen.take(LONG.replace("April and May?", "April and in May?")) == "near_duplicate"
    assert seen.take(OTHER) == ""
    # What was left out is not remembered.
    assert seen.take(SHORT) == ""
    assert seen.take("Who played the husband in Sweet Home Alabama?") == ""


def test_similarity_decides() -> None:
    nearly = LONG.replace("Natalia", "Maria")
    assert [SeenPrompts(share).take(LONG) for share in (0.3, 0.95)] == ["", ""]
    loose, strict = SeenPrompts(0.3), SeenPrompts(0.95)
    for seen in (loose, strict):
        seen.take(LONG)
    assert loose.take(nearly) == "near_duplicate"
    assert strict.take(nearly) == ""


def test_texts_without_words() -> None:
    seen = SeenPrompts(0.7)
    assert [seen.take(text) for text in ("?!", "?!", "...", "", "🙂")] == [
        "",
        "duplicate",
        "",
        "",
        "",
    ]


def test_many_texts_of_the_same_kind_are_told_apart() -> None:
    seen = SeenPrompts(0.7)
    texts = [
        f"What is the {i}th number in the {j}th row of a table?" for i in range(9) for j in range(9)
    ]
    taken = sum(seen.take(text) == "" for text in texts)
    assert 30 < taken <= len(texts)


def test_the_first_of_many_is_remembered() -> None:
    seen = SeenPrompts(0.7)
    seen.take(LONG)
    assert not any(seen.take(f"a{i} b{i} c{i} d{i}") for i in range(2100))
    assert seen.take(LONG.replace("clips in May", "clips, in May")) == "near_duplicate"
    assert seen.take("a1500 b1500, c1500 d1500?") == "near_duplicate"
