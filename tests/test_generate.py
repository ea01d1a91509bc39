import gzip
import io
import json
import re
import sys
from pathlib import Path

import pytest
import tiktoken
import torch

from gpt.errors import UserError
from gpt.generation.generate import Continuation, Request, generate, stream
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from scripts import generate as script
from tests.runs import is_one_line_error

CONTEXT = 16
GREEDY = Sampling(temperature=0)
EOT = 256


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer("bytes")


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, context_length=CONTEXT, d_model=32, num_layers=2, num_heads=4, dropout=0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # low entropy, so that prompts give different texts
        model.lm_head_weight[EOT] = 0  # end-of-text is unlikely
    return model.requires_grad_(False)


def _one(model: GPT, tokenizer: Tokenizer, prompt: list[int], request: Request, seed: int = 0) -> Continuation:
    (continuation,) = generate(model, tokenizer, [prompt], request, [seed])
    return continuation


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_decoding_takes_the_most_likely_token(use_cache: bool, model: GPT, tokenizer: Tokenizer) -> None:
    ids, start = [EOT, 3, 1, 4], 0
    model.eval()
    for _ in range(40):
        if len(ids) - start > CONTEXT:  # a full context drops its older half
            start = len(ids) - CONTEXT // 2
        ids.append(int(model(torch.tensor([ids[start:]]))[0, -1].argmax()))
    assert EOT not in ids[1:]
    result = _one(model, tokenizer, [3, 1, 4], Request(40, GREEDY, use_cache=use_cache))
    assert result.token_ids == ids[4:]
    assert result.finish_reason == "length"


PROMPTS = [[1], [], [7] * 15, [5, 6, 7, 8], [9] * 16, [2] * 50]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.7, 40, 0.9, 0.01, 1.2)])
def test_sequences_of_a_batch_are_generated_as_if_alone_with_and_without_cache(
    sampling: Sampling, model: GPT, tokenizer: Tokenizer
) -> None:
    seeds = list(range(len(PROMPTS)))
    together = generate(model, tokenizer, PROMPTS, Request(45, sampling), seeds)
    for prompt, seed, continuation in zip(PROMPTS, seeds, together, strict=True):
        assert continuation == _one(model, tokenizer, prompt, Request(45, sampling), seed)
        assert continuation == _one(model, tokenizer, prompt, Request(45, sampling, use_cache=False), seed)
    assert generate(model, tokenizer, PROMPTS[::-1], Request(45, sampling), seeds[::-1]) == together[::-1]


@pytest.mark.parametrize("context_length", [1, 2, 3])
def test_cached_and_uncached_texts_are_equal_for_the_smallest_contexts(
    context_length: int, tokenizer: Tokenizer
) -> None:
    torch.manual_seed(0)
    tiny = GPT(GPTConfig(257, context_length, d_model=8, num_layers=1, num_heads=1, dropout=0.0)).requires_grad_(False)
    for prompts in ([[]], [[1, 2, 3], [], [4]]):
        cached, uncached = (
            generate(tiny, tokenizer, prompts, Request(9, GREEDY, use_cache=use), [0] * len(prompts))
            for use in (True, False)
        )
        assert cached == uncached


def test_each_sequence_of_a_batch_ends_at_its_own_stop_string(model: GPT, tokenizer: Tokenizer) -> None:
    free = generate(model, tokenizer, PROMPTS, Request(30), [0] * len(PROMPTS))
    stops = (free[1].text[4:6], free[3].text[10:11])
    ended = generate(model, tokenizer, PROMPTS, Request(30, stops=stops), [0] * len(PROMPTS))
    assert {continuation.finish_reason for continuation in ended} >= {"stop"}
    for before, after in zip(free, ended, strict=True):
        cuts = [before.text.find(stop) for stop in stops if stop in before.text]
        assert after.text == (before.text[: min(cuts)] if cuts else before.text)
        assert after.finish_reason == ("stop" if cuts else "length")
        assert after.token_ids == before.token_ids[: len(after.token_ids)]


def test_the_seed_determines_the_text(model: GPT, tokenizer: Tokenizer) -> None:
    texts = [_one(model, tokenizer, [5], Request(30), seed).token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_dropout_is_off_and_the_mode_is_restored(model: GPT, tokenizer: Tokenizer) -> None:
    for training in (True, False):
        model.train(training)
        first, second = (_one(model, tokenizer, [5], Request(30, GREEDY)) for _ in range(2))
        assert first == second
        assert model.training is training


def test_the_mode_is_restored_after_an_exception_and_while_streaming(model: GPT, tokenizer: Tokenizer) -> None:
    model.train()
    with pytest.raises(IndexError):
        _one(model, tokenizer, [257], Request(1))
    assert model.training
    pieces = stream(model, tokenizer, [[5]], Request(30), [0])
    next(pieces)  # and no further piece is read
    assert model.training
    assert torch.is_grad_enabled()


def test_arguments_are_not_modified(model: GPT, tokenizer: Tokenizer) -> None:
    prompts, seeds = [[1, 2], [3]], [4, 5]
    generate(model, tokenizer, prompts, Request(40), seeds)
    assert (prompts, seeds) == ([[1, 2], [3]], [4, 5])


def test_end_of_text_ends_the_continuation_and_is_not_included(model: GPT, tokenizer: Tokenizer) -> None:
    ends = GPT(model.config)
    with torch.no_grad():  # its hidden states are a multiple of the end-of-text embedding
        ends.transformer.final_norm.weight.zero_()
        ends.transformer.final_norm.bias.copy_(ends.lm_head_weight[EOT] * 1000)
    assert _one(ends, tokenizer, [5], Request(10, GREEDY)) == Continuation("", [], "eos")


class _Scripted(GPT):
    """A model that generates given ids for any prompt."""

    def __init__(self, ids: list[int], vocab_size: int) -> None:
        super().__init__(GPTConfig(vocab_size, context_length=8, d_model=8, num_layers=1, num_heads=1, dropout=0.0))
        self._ids, self._vocab_size = iter(ids), vocab_size

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([next(self._ids)]), self._vocab_size).float()


UNICODE = [
    "plain",
    " leading and  double  spaces \n\n",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
    "e\u0301 combining",
    "漢字 かな 한국어",
    "\ufffd",
    "\U0001f600" * 9,
]


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
@pytest.mark.parametrize("text", UNICODE)
def test_streamed_pieces_join_to_the_text_and_contain_complete_characters(name: str, text: str) -> None:
    tokenizer = Tokenizer(name)
    ids = tokenizer.encode(text)
    for length in range(1, len(ids) + 1):
        pieces = list(
            stream(_Scripted(ids, tokenizer.vocab_size), tokenizer, [[]], Request(length, GREEDY, ("@@", "字字")), [0])
        )
        # The longest beginning of the text whose bytes are generated: a character that was cut is left out.
        generated = len(tokenizer.decode_bytes(ids[:length]))
        whole = next(text[:end] for end in range(len(text), -1, -1) if len(text[:end].encode()) <= generated)
        assert "".join(piece.text for piece in pieces) == whole == pieces[-1].finished.text
        for piece in pieces[:-1]:
            assert "\ufffd" not in piece.text or "\ufffd" in text


@pytest.mark.parametrize("stop", ["字 か", "\U0001f600\U0001f600", " words", "s\n"])
def test_a_stop_string_across_tokens_is_not_streamed(stop: str) -> None:
    tokenizer = Tokenizer("gpt2")
    text = f"some words and{stop} more{stop}"
    model = _Scripted(tokenizer.encode(text), tokenizer.vocab_size)
    pieces = list(stream(model, tokenizer, [[]], Request(100, GREEDY, (stop, "never")), [0]))
    assert "".join(piece.text for piece in pieces) == text[: text.index(stop)]
    assert pieces[-1].finished.finish_reason == "stop"


def test_an_incomplete_character_is_left_out_where_the_text_is_cut(tokenizer: Tokenizer) -> None:
    ids = [0x61, 0xF0, 0x9F]
    continuation = _one(_Scripted(ids, 257), tokenizer, [], Request(3, GREEDY))
    assert continuation == Continuation("a", ids, "length")


def test_an_incomplete_character_before_end_of_text_is_replaced(tokenizer: Tokenizer) -> None:
    ids = [0x61, 0xF0, 0x9F, tokenizer.eot_id]
    continuation = _one(_Scripted(ids, 257), tokenizer, [], Request(9, GREEDY))
    assert continuation == Continuation("a\ufffd", ids[:3], "eos")


def test_the_repetition_penalty_covers_prompt_and_continuation(model: GPT, tokenizer: Tokenizer) -> None:
    plain = _one(model, tokenizer, [5] * 4, Request(60, GREEDY)).token_ids
    varied = _one(model, tokenizer, [5] * 4, Request(60, Sampling(0, repetition_penalty=1.8))).token_ids
    assert len(set(varied)) > len(set(plain))


def test_a_long_prompt_is_truncated_to_its_end_with_a_warning(
    model: GPT, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    long = list(range(40))
    first = _one(model, tokenizer, long, Request(5, GREEDY))
    assert "a prompt of 40 tokens exceeds the context of 16; using its last 8" in caplog.text
    # The dropped tokens have no effect.
    assert first == _one(model, tokenizer, [99] * 32 + long[32:], Request(5, GREEDY))


# Flags of the script -> what its sample must be.
BOUNDARY_VALUES: list[tuple[list[str], dict[str, object]]] = [
    (["--prompt", ""], {"tokens": 10}),
    (["--prompt", "x"], {"tokens": 10}),
    (["--prompt", "x" * 31], {"tokens": 10}),  # with end-of-text, exactly the context
    (["--prompt", "x" * 32], {"tokens": 10, "err": "using its last 16"}),
    (["--prompt", "x" * 500], {"tokens": 10, "err": "using its last 16"}),
    (["--prompt", "<|endoftext|>"], {"tokens": 10, "prompt": "<|endoftext|>"}),
    (["--temperature", "0"], {"tokens": 10}),
    (["--temperature", "1e-30"], {"same as": ["--temperature", "0"]}),
    (["--top-k", "1"], {"same as": ["--temperature", "0"]}),
    (["--top-k", "1000000"], {"same as": []}),
    (["--top-k", "0"], {"same as": []}),
    (["--top-p", "0"], {"same as": ["--temperature", "0"]}),
    (["--top-p", "1"], {"same as": []}),
    (["--min-p", "1"], {"same as": ["--temperature", "0"]}),
    (["--repetition-penalty", "1"], {"same as": []}),
    (["--no-cache"], {"same as": []}),
    (["--prompt", "bottles", "--stop", "bottles"], {"tokens": 10}),  # stop strings do not apply to the prompt
    (["--max-new-tokens", "0"], {"tokens": 0}),
]


def _samples(arguments: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict], str]:
    assert script.main([str(run), "--max-new-tokens", "10", "--device", "cpu", "--json", *arguments]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out)["samples"], captured.err


@pytest.mark.parametrize("arguments,expected", BOUNDARY_VALUES, ids=lambda value: " ".join(value)[:30] if value else "")
def test_script_with_boundary_values(
    arguments: list[str], expected: dict, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sample,), err = _samples(arguments, tiny_run, capsys)
    assert set(sample) == {"prompt", "text", "token_ids", "finish_reason"}
    assert bytes(sample["token_ids"]).decode(errors="replace").startswith(sample["text"])
    assert len(sample["token_ids"]) == expected.get("tokens", 10) or sample["finish_reason"] != "length"
    assert expected.get("err", "") in err
    assert sample["prompt"] == expected.get("prompt", sample["prompt"])
    if "same as" in expected:
        assert [sample] == _samples(expected["same as"], tiny_run, capsys)[0]


def test_script_reads_prompts_from_flags_files_and_stdin_and_reports_its_speed(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("from a file\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ein Gruß".encode())))
    files = ["--prompt-file", str(tmp_path / "prompt.txt"), "--prompt-file", "-"]
    arguments = ["--prompt", "a", "--prompt", "b", *files, "--num-samples", "2"]
    samples, err = _samples(arguments, tiny_run, capsys)
    prompts = ["a", "b", "from a file", "ein Gruß"]
    assert [sample["prompt"] for sample in samples] == [prompt for prompt in prompts for _ in range(2)]
    assert samples[0]["text"] != samples[1]["text"]
    assert "tokens/s" in err
    assert "first text after" in err


PROMPT = "two\r\nlines é"


@pytest.mark.parametrize(
    "content,expected",
    [
        *(((PROMPT + end).encode(), PROMPT) for end in ("", "\n", "\r\n", "\r")),
        ((PROMPT + "\r\n\r\n").encode(), PROMPT + "\r\n"),
        ((PROMPT + "\n").encode("utf-8-sig"), PROMPT),
        (gzip.compress((PROMPT + "\n").encode(), mtime=0), PROMPT),
        (b"\n", ""),
        (b"", ""),
        (b"caf\xe9", "is not UTF-8: byte 0xe9 at offset 3; convert it"),
        ((PROMPT + "\n").encode("utf-16"), "is UTF-16 (iconv -f UTF-16 -t UTF-8 converts it); expected text in UTF-8"),
        (b"PK\3\4", "is a ZIP archive"),
        (gzip.compress(PROMPT.encode(), mtime=0)[:-9], "is not valid gzip, or truncated"),
        (bytes(9), "is binary or UTF-16"),
    ],
)
def test_a_prompt_is_read_like_training_text_without_its_last_line_end(
    content: bytes, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt").write_bytes(content)
    for name in (str(tmp_path / "prompt"), "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        arguments = script.parser().parse_args(["model", "--prompt-file", name])
        if expected.startswith("is "):
            with pytest.raises(UserError, match=re.escape(f"prompt file {name} {expected}")):
                script._read_prompts(arguments)
        else:
            assert script._read_prompts(arguments) == [expected]


def test_script_prints_the_same_text_with_and_without_stream(
    tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tiny_run), "--prompt", "bottles", "x", "--num-samples", "2", "--seed", "3", "--device", "cpu"]
    outputs = []
    for flags in ([], ["--stream"]):
        assert script.main([*arguments, *flags]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("bottles")
    assert outputs[0].count("\n---\n") == 3


@pytest.mark.parametrize("flags,is_streamed", [([], True), (["--no-stream"], False), (["--json"], False)])
def test_script_streams_on_a_terminal(
    flags: list[str], is_streamed: bool, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr("gpt.cli.print", lambda text, end, flush: printed.append(text), raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert script.main([str(tiny_run), "--max-new-tokens", "5", "--device", "cpu", *flags]) == 0
    assert (len(list(filter(None, printed))) > 1) == is_streamed


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--temperature", "-1"], "--temperature is -1.0"),
        (["--top-k", "-1"], "--top-k is -1"),
        (["--top-p", "1.5"], "--top-p is 1.5"),
        (["--min-p", "-0.1"], "--min-p is -0.1"),
        (["--repetition-penalty", "0"], "--repetition-penalty is 0.0"),
        (["--stop", ""], "a stop string is empty"),
        (["--stop", "x\udce9"], "'x\\udce9' is not UTF-8"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999"),
        (["--seed", "-1"], "--seed is -1"),
        (["--max-new-tokens", "-1"], "--max-new-tokens is -1"),
        (["--num-samples", "0"], "--num-samples is 0"),
        (["--device", "abacus"], "device 'abacus' is not available"),
        (["--prompt", "x\udce9"], "'\\udce9' in the text is not a character"),
        (["--stream", "--prompt", "good", "x\udce9"], "'\\udce9' in the text is not a character"),
        (["--prompt-file", "missing.txt"], "missing.txt"),
        (["--stream", "--json"], "not allowed with"),
        (["--tempreature", "1"], "--tempreature"),
    ],
)
def test_script_reports_a_mistake_in_one_line(
    arguments: list[str], words: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = script.main([str(tiny_run), *arguments])
    except SystemExit as exit_:  # from argparse
        status = exit_.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert is_one_line_error(captured.err, words)


def test_script_refuses_invalid_prompt_files_and_checkpoints(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as after <&- in a shell
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    content = torch.load(tiny_run / "last.ckpt", weights_only=True)
    content["hyper_parameters"]["tokenizer"] = "gpt2"
    torch.save(content, tmp_path / "other.ckpt")
    for arguments, words in [
        (
            [str(tiny_run), "--prompt-file", str(tmp_path / "latin1.txt")],
            "latin1.txt is not UTF-8: byte 0xe9 at offset 3",
        ),
        ([str(tiny_run), "--prompt-file", "-"], "standard input or output is closed; expected an open one"),
        ([str(tmp_path / "none.ckpt")], "there is no checkpoint"),
        ([str(tmp_path / "other.ckpt")], "has 257 token ids and its tokenizer 'gpt2' 50257"),
    ]:
        assert script.main(arguments) == 2
        assert is_one_line_error(capsys.readouterr().err, words)


def test_text_from_a_vocabulary_with_gaps_equals_its_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([value]): value for value in range(256)}
    gaps = tiktoken.Encoding("gaps", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300})
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["gaps"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: gaps)
    tokenizer = Tokenizer("gaps")
    ids = [97, 299, 98]
    assert _one(_Scripted(ids, 301), tokenizer, [], Request(3, GREEDY)).text == tokenizer.decode(ids)
