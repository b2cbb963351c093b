"""`forerun generate`: what it prints, as text and as an object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.cli.output import Output
from forerun.models import Checkpoint
from tests.helpers.backends import needs_kernels
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

BASE_KEYS = {
    "sampling",
    "sampling_from_model",
    "settings",
    "schema_version",
    "versions",
    "hardware",
    "model",
    "draft_model",
    "method",
    "exactness",
    "dtype",
    "kv_dtype",
    "draft_dtype",
    "template",
    "prompt",
    "prompt_tokens",
    "text",
    "token_ids",
    "seconds",
    "tokens_per_second",
    "stats",
    "origins",
    "finish_reason",
    "policy",
    "decisions",
    "given_up",
}
COMPARE_KEYS = {
    "plain",
    "compare_rounds",
    "speedup",
    "speedup_range",
    "decode_speedup",
    "identical",
}
GREEDY = ("--temperature", "0")


def test_the_object_has_its_keys(cli: Cli) -> None:
    content = cli.json(*GREEDY)
    assert set(content) == BASE_KEYS
    assert set(content["versions"]) == {"forerun", "torch", "transformers", "python"}
    assert set(content["hardware"]) == {"cpu", "cores", "threads", "device"}
    assert content["schema_version"] == 1
    assert (content["method"], content["draft_model"]) == ("draft_model", cli.draft)
    assert content["model"] == cli.target


@needs_kernels
def test_precisions_are_shown(cli: Cli) -> None:
    content = cli.json(*GREEDY, "--device", "cpu")
    assert (content["dtype"], content["draft_dtype"]) == ("fp32", "int8")
    assert content["exactness"] == "bitwise"
    content = cli.json(*GREEDY, "--device", "cpu", "--dtype", "int4", "--draft-dtype", "bf16")
    assert (content["dtype"], content["draft_dtype"]) == ("int4", "bf16")
    content = cli.json(*GREEDY, "--device", "cpu", "--backend", "torch")
    assert (content["dtype"], content["draft_dtype"]) == ("fp32", "fp32")
    assert content["exactness"] == "distributional"


@needs_kernels
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("options", [GREEDY, ("--seed", "5")], ids=["greedy", "seeded"])
def test_the_kernels_find_the_same_tokens(cli: Cli, dtype: str, options: tuple[str, ...]) -> None:
    compared = ("--compare", "--compare-rounds", "1", "--device", "cpu", "--dtype", dtype)
    content = cli.json(*options, *compared)
    assert content["identical"] is True


@pytest.mark.parametrize("options", [GREEDY, ("--seed", "5"), ("--temperature", "0.8")])
def test_statistics_add_up(cli: Cli, options: tuple[str, ...]) -> None:
    content = cli.json(*options, "--ignore-eos")
    stats, origins = content["stats"], content["origins"]
    assert len(content["token_ids"]) == len(origins) == stats["num_emitted_tokens"] == 24
    assert stats["num_drafts"] > 0
    assert origins.count("accepted") == stats["num_accepted_tokens"]
    assert sum(stats["num_accepted_tokens_per_pos"]) == stats["num_accepted_tokens"]
    # Every round emits one token beyond the accepted ones, but for a cut at the limit.
    rounds = stats["num_drafts"] + stats["num_plain_rounds"]
    assert rounds - 1 <= stats["num_emitted_tokens"] - stats["num_accepted_tokens"] <= rounds
    assert stats["prompt_tokens"] == content["prompt_tokens"] > 0
    assert content["finish_reason"] == "length"
    assert content["seconds"] >= stats["seconds"] > 0


@pytest.mark.parametrize(
    "options",
    [
        GREEDY,
        ("--seed", "5"),
        ("--seed", "5", "--top-k", "9", "--repetition-penalty", "1.2"),
        (*GREEDY, "--frequency-penalty", "0.5", "--logit-bias", "9=2", "--banned-token-ids", "4,5"),
    ],
)
def test_comparison_finds_the_same_tokens(cli: Cli, options: tuple[str, ...]) -> None:
    content = cli.json(*options, "--compare", "--compare-rounds", "2", "--dtype", "fp32")
    assert set(content) == BASE_KEYS | COMPARE_KEYS
    assert content["identical"] is True
    assert content["plain"]["token_ids"] == content["token_ids"]
    assert content["plain"]["text"] == content["text"]
    assert content["stats"]["num_drafts"] > 0 == content["plain"]["stats"]["num_drafts"]
    low, high = content["speedup_range"]
    assert 0 < low <= content["speedup"] <= high
    assert content["compare_rounds"] == 2


def test_an_odd_number_of_rounds_shows_the_median_one(cli: Cli) -> None:
    content = cli.json(*GREEDY, "--compare")
    ratio = content["tokens_per_second"] / content["plain"]["tokens_per_second"]
    assert ratio == pytest.approx(content["speedup"])


@pytest.mark.parametrize("options", [(), ("--seed", "3", "--rejection-sample-method", "token")])
def test_unseeded_sampling_is_not_compared(cli: Cli, options: tuple[str, ...]) -> None:
    content = cli.json(*options, "--compare", "--compare-rounds", "1")
    assert content["identical"] is None
    assert "first_difference" not in content


def test_plain_decoding_gives_the_same_text(cli: Cli) -> None:
    common = ("--model", cli.target, "--prompt", "def add", "--max-tokens", "24", *GREEDY)
    plain = cli.run("generate", "--no-speculative", "--json", *common)
    content = json.loads(plain.stdout)
    assert content["method"] is None is content["draft_model"]
    assert set(content["origins"]) == {"plain"}
    assert content["token_ids"] == cli.json(*GREEDY)["token_ids"]


def test_without_a_draft_one_is_picked_and_said(cli: Cli) -> None:
    result = cli.run(
        "generate", "--model", cli.target, "--prompt", "aaaa", "--max-tokens", "4", "--json"
    )
    assert json.loads(result.stdout)["method"] == "suffix"
    assert "suffix" in result.stderr


def test_logprobs(cli: Cli) -> None:
    content = cli.json(*GREEDY, "--logprobs", "3")
    entries = content["logprobs"]
    assert [entry["token_id"] for entry in entries] == content["token_ids"]
    assert all(len(entry["top"]) == 3 for entry in entries)
    assert all(entry["top"][0]["token_id"] == entry["token_id"] for entry in entries)
    # A greedy row as drawn from is one-hot: all else has no log probability, and no -Infinity.
    processed = cli.json(*GREEDY, "--logprobs", "2", "--logprobs-mode", "processed")
    assert processed["logprobs"][0]["top"][1]["logprob"] is None


def test_piped_output_is_the_text_and_one_newline(cli: Cli, write: Write) -> None:
    text = cli.json(*GREEDY)["text"]
    for source, stdin in (
        (("--prompt", "def add"), None),
        (("--prompt-file", write("prompt.txt", "def add")), None),
        (("--prompt-file", "-"), "def add"),
        (("-",), "def add"),
        ((), "def add"),
    ):
        result = cli.generate(*GREEDY, *source, input=stdin)
        assert result.exit_code == 0
        assert result.stdout == text + "\n"
        assert "acceptance rate" in result.stderr
        assert "\x1b" not in result.output


def test_compared_text_is_printed_once(cli: Cli) -> None:
    options = (*GREEDY, "--prompt", "def add", "--compare", "--compare-rounds", "1")
    result = cli.generate(*options)
    assert result.stdout == cli.json(*GREEDY)["text"] + "\n"
    assert "speed-up" in result.stderr
    assert "same tokens as plain" in result.stderr


@pytest.mark.parametrize("other", ["--compare", "--show-rounds"])
def test_quiet_excludes_what_prints_more_than_the_text(cli: Cli, other: str) -> None:
    refused(cli.generate("--prompt", "def add", "--quiet", other), "--quiet", other, "exclude")


@pytest.mark.parametrize("name", ["bench", "chat", "generate"])
def test_help_all_in_two_words(cli: Cli, name: str) -> None:
    assert cli.run(name, "--help", "all").stdout == cli.run(name, "--help-all").stdout


def test_the_prompt_is_taken_character_for_character(cli: Cli, write: Write) -> None:
    content = cli.generate(*GREEDY, "--json", "--prompt-file", write("p", " a\r\n\t b\n\n"))
    same = cli.generate(*GREEDY, "--json", "--prompt", " a\r\n\t b\n\n")
    other = cli.generate(*GREEDY, "--json", "--prompt", "a b")
    tokens = [json.loads(result.stdout)["prompt_tokens"] for result in (content, same, other)]
    assert tokens[0] == tokens[1] > tokens[2]


def test_stop_string_ends_the_text(cli: Cli) -> None:
    text = cli.json(*GREEDY)["text"]
    stop = text[len(text) // 2 :][:2]
    content = cli.json(*GREEDY, "--stop", stop)
    assert content["text"] == text[: text.index(stop)]
    assert content["finish_reason"] == "stop"


@pytest.mark.parametrize("as_json", [True, False])
def test_interruption_leaves_what_there_is(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    from forerun.cli.terminal import PlainOutput

    whole = cli.json(*GREEDY)
    seen = []

    def interrupted(self: Any, event: Any) -> None:
        seen.append(event)
        if len(seen) == 7:
            raise KeyboardInterrupt

    output = Output if as_json else PlainOutput
    monkeypatch.setattr(output, "event", interrupted)
    result = cli.generate(*GREEDY, "--prompt", "def add", *(["--json"] if as_json else []))
    assert result.exit_code == 130
    if as_json:
        content = json.loads(result.stdout)
        count = len(content["token_ids"])
        assert 7 <= count < 24
        assert content["token_ids"] == whole["token_ids"][:count]
        tokenizer = Checkpoint.open(cli.target).tokenizer
        decoded = tokenizer.decode(content["token_ids"], skip_special_tokens=True)
        assert content["text"] == decoded
        assert content["stats"]["num_emitted_tokens"] == len(content["origins"]) == count
        assert content["finish_reason"] == "cancelled"
    else:
        assert len(result.stdout) > 1
        assert whole["text"].startswith(result.stdout[:-1])


def test_caches_are_no_larger_than_needed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engine import load as module

    seen = []
    original: Any = vars(module)["Engine"]

    def watched(*args: Any, **settings: Any) -> Any:
        engine = original(*args, **settings)
        seen.append(engine.max_context)
        return engine

    monkeypatch.setattr(module, "Engine", watched)
    content = cli.json(*GREEDY, "--max-tokens", "100")
    needed = content["prompt_tokens"] + 100
    assert needed <= seen[0] < needed + 64
    cli.json(*GREEDY, "--max-context", "777")
    assert seen[1] == 777
