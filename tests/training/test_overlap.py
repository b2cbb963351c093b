"""What says the same is found, whatever its case and punctuation, and what does not is let through."""

from __future__ import annotations

import pytest

from forerun.training.answering import KeptOut, key_of

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
    same = (f"{LONG}\n", LONG.lower(), LONG.replace("clips in May", "clips, in May"))
    assert {key_of(text) for text in same} == {key_of(LONG)}
    assert len({key_of(text) for text in (LONG, OTHER, SHORT, "?!", "...", "", "🙂")}) == 7
