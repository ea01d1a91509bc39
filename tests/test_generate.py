import json
from pathlib import Path

import pytest
import torch

from gpt.generation.generate import generate
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from scripts import generate as script

EOT = 96


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=97, context_length=16, d_model=32, num_layers=2, num_heads=4, dropout=0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # decided opinions, so that texts differ
        model.head_weight[EOT] = 0  # and no wish to end
    return model


def test_greedy_takes_the_likeliest_token_given_all_before_it(model: GPT) -> None:
    ids = [EOT, 3, 1, 4]
    model.eval()
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert EOT not in ids[1:]
    result = generate(model, [3, 1, 4], EOT, 6, Sampling(temperature=0), seed=0)
    assert result.token_ids == ids[4:]
    assert result.finish_reason == "length"


def test_a_full_context_forgets_its_older_half(model: GPT) -> None:
    ids, start = [EOT, 1, 2, 3], 0
    model.eval()
    for _ in range(40):
        if len(ids) - start > 16:
            start = len(ids) - 8
        ids.append(int(model(torch.tensor([ids[start:]]))[0, -1].argmax()))
    assert generate(model, [1, 2, 3], EOT, 40, Sampling(temperature=0), seed=0).token_ids == ids[4:]


def test_the_same_seed_gives_the_same_text_and_another_another(model: GPT) -> None:
    texts = [generate(model, [5], EOT, 30, Sampling(), seed).token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_dropout_is_off_and_the_mode_is_put_back(model: GPT) -> None:
    for training in (True, False):
        model.train(training)
        first, second = (generate(model, [5], EOT, 30, Sampling(temperature=0), seed=0) for _ in range(2))
        assert first == second
        assert model.training is training


def test_the_mode_is_put_back_after_a_failure(model: GPT) -> None:
    model.train()
    with pytest.raises(IndexError):
        generate(model, [97], EOT, 1, Sampling(), seed=0)
    assert model.training


def test_end_of_text_ends_it_and_is_not_part_of_it(model: GPT) -> None:
    result = generate(_AlwaysEndOfText(model), [5], EOT, 10, Sampling(temperature=0), seed=0)
    assert (result.token_ids, result.finish_reason) == ([], "eos")


class _AlwaysEndOfText(GPT):
    """A model whose last hidden state points at the end of text's embedding."""

    def __init__(self, model: GPT) -> None:
        super().__init__(model.config)
        with torch.no_grad():
            self.transformer.final_norm.weight.zero_()
            self.transformer.final_norm.bias.copy_(self.head_weight[EOT] * 1000)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(model: GPT) -> None:
    assert len(generate(model, [1] * 15, EOT, 1, Sampling(), seed=0).token_ids) == 1
    with pytest.raises(ValueError, match=r"16 tokens.*holds 16"):
        generate(model, [1] * 16, EOT, 1, Sampling(), seed=0)


def test_script_prints_prompt_and_text(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny_run), "--prompt", "bottles", "--max-new-tokens", "20", "--seed", "3", "--device", "cpu"]
    assert script.main(arguments) == 0
    first = capsys.readouterr().out
    assert first.startswith("bottles")
    assert script.main(arguments) == 0
    assert capsys.readouterr().out == first


def test_script_prints_one_json_object(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny_run), "--prompt", "a", "b", "--num-samples", "2", "--max-new-tokens", "5", "--json"]
    assert script.main(arguments) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert [sample["prompt"] for sample in samples] == ["a", "a", "b", "b"]
    assert samples[0]["text"] != samples[1]["text"]
    for sample in samples:
        assert set(sample) == {"prompt", "text", "token_ids", "finish_reason"}
        assert bytes(sample["token_ids"]).decode(errors="replace") == sample["text"]


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--prompt", "x" * 32], "32 tokens"),
        (["--temperature", "-1"], "--temperature is -1.0"),
        (["--top-k", "-1"], "--top-k is -1"),
        (["--prompt", "fine", "x" * 32], "32 tokens"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999"),
        (["--max-new-tokens", "-1"], "--max-new-tokens is -1"),
        (["--num-samples", "0"], "--num-samples is 0"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--tempreature", "1"], "--tempreature"),
    ],
)
def test_script_says_a_mistake_in_one_line(
    arguments: list[str], words: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = script.main([str(tiny_run), *arguments])
    except SystemExit as exit_:  # argparse's own
        status = exit_.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_an_empty_prompt_starts_from_end_of_text(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt in ([], ["--prompt", ""]):
        assert script.main([str(tiny_run), *prompt, "--max-new-tokens", "10", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert len(first["samples"][0]["token_ids"]) == 10
