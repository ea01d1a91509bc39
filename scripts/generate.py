"""Generate text from a checkpoint. See --help."""

import argparse
import io
import logging
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli import ArgumentParser, print_json, print_text, progress, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.generation.generate import Continuation, Request
    from gpt.generation.packed import Model
    from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

DESCRIPTION = """\
Continue prompts with a trained model. Dropout is off; the same seed gives the same text.

  python scripts/generate.py checkpoints/quickstart --prompt "The import statement"
  python scripts/generate.py checkpoints/quickstart --temperature 0.8 --top-k 50 --num-samples 3 --stream
  python scripts/generate.py openai-community/gpt2 --prompt-file letter.txt --stop $'\\n\\n'
  echo "Once upon" | python scripts/generate.py gpt2 --prompt-file - --quantize int8
"""
EPILOG = """\
--json prints one object: {"samples": [{"prompt", "text", "token_ids", "finish_reason"}, ...]}. text and token_ids are
the continuation only; text ends before a stop string, token_ids include it. finish_reason is "length", "eos"
(end-of-text token) or "stop". Speed is logged to stderr.
"""
_BATCH_SIZE = 32  # a sequence of GPT-2 small takes 72 MB of KV cache


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="generate.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_checkpoint()
    add = parser.add_argument
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    add("--prompt", **many, metavar="TEXT", help="texts to continue (default: an empty prompt)")
    add("--prompt-file", **many, metavar="F", help="files, each a prompt without its last newline; - is standard input")
    add("--max-new-tokens", type=int, default=100, metavar="N", help="most tokens per sample (default 100)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default 1.0)")
    add("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens (default: all)")
    add(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the likeliest tokens with probability P together (default 1)",
    )
    add(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="drop tokens less likely than P times the likeliest (default 0)",
    )
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1 repeats less (default 1)")
    add("--stop", **many, metavar="TEXT", help="stop strings, which are not printed")
    add("--num-samples", type=int, default=1, metavar="N", help="samples per prompt (default 1)")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of a prompt's first sample; the next sample has the next seed (default 0)",
    )
    parser.add_device()
    add("--quantize", choices=("int8",), help="compute in int8: faster on a CPU from about d_model 384")
    add("--no-cache", action="store_true", help="recompute the whole context for each token: slow, for comparison")
    how = parser.add_mutually_exclusive_group()
    stream = "print text as it is generated, one sample after the other (default: on a terminal)"
    how.add_argument("--stream", action=argparse.BooleanOptionalAction, help=stream)
    how.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Generate."""
    args = parser().parse_args(argv)
    if args.num_samples < 1:
        raise UserError(f"--num-samples is {args.num_samples}; it must be at least 1")
    # Imported here so that --help answers at once.
    from gpt.checkpoint import load_model
    from gpt.cli import choose_device
    from gpt.generation.generate import Request, check_seeds
    from gpt.generation.packed import PackedGPT
    from gpt.generation.sampling import Sampling

    "".join(args.stop).encode()  # bytes that are not UTF-8 are an error: no text contains them
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty)
    request = Request(args.max_new_tokens, sampling, tuple(args.stop), not args.no_cache)
    prompts = [prompt for prompt in _read_prompts(args) for _ in range(args.num_samples)]
    seeds = [args.seed + index % args.num_samples for index in range(len(prompts))]
    check_seeds(seeds)
    model, tokenizer = load_model(args.checkpoint, choose_device(args.device))
    prompt_ids = [tokenizer.encode(prompt) for prompt in prompts]  # all, so that a bad one is refused before any text
    if args.quantize and model.config.d_model < 384:  # docs/experiments.md
        log.warning("a model with d_model below 384 is slower in int8")
    use_packed = args.quantize or model.device.type == "cpu"
    decoder = PackedGPT(model, args.quantize) if use_packed else model
    del model  # PackedGPT holds what it needs of it
    is_streamed = sys.stdout.isatty() and not args.json if args.stream is None else args.stream
    shown = prompts if is_streamed else None
    continuations = _generate(decoder, tokenizer, prompt_ids, request, seeds, shown)
    samples = list(zip(prompts, continuations, strict=True))
    if args.json:
        print_json({"samples": [{"prompt": prompt, **asdict(continuation)} for prompt, continuation in samples]})
    elif not is_streamed:
        print_text("\n---\n".join(prompt + continuation.text for prompt, continuation in samples))
    return 0


def _generate(
    model: "Model",
    tokenizer: "Tokenizer",
    prompt_ids: list[list[int]],
    request: "Request",
    seeds: list[int],
    shown: list[str] | None,
) -> "list[Continuation]":
    """Generate in batches, or print one sequence after the other, with its prompt, as it comes; log the speed."""
    from gpt.generation.generate import stream

    started, first_text = time.perf_counter(), 0.0
    continuations: list[Continuation] = []
    batch_size = 1 if shown else _BATCH_SIZE
    for start in range(0, len(prompt_ids), batch_size):
        batch, batch_seeds = prompt_ids[start : start + batch_size], seeds[start : start + batch_size]
        finished: dict[int, Continuation] = {}
        if shown:
            print_text("---\n" * (start > 0) + shown[start], end="")
        pieces = stream(model, tokenizer, batch, request, batch_seeds)
        for piece in pieces if shown else progress(pieces, len(batch) * request.max_new_tokens, "tokens"):
            first_text = first_text or time.perf_counter() - started
            if shown:
                print_text(piece.text, end="")
            if piece.finished:
                finished[piece.sequence] = piece.finished
        if shown:
            print_text("")
        continuations += [finished[index] for index in range(len(batch))]
    if tokens := sum(len(continuation.token_ids) for continuation in continuations):
        rate = tokens / (time.perf_counter() - started)
        log.info("first text after %.2f s, %d tokens, %.1f tokens/s", first_text, tokens, rate)
    return continuations


def _read_prompts(args: argparse.Namespace) -> list[str]:
    from gpt.data.documents import decode_text

    prompts = list(args.prompt)
    for name in args.prompt_file:
        with io.BufferedReader(io.BytesIO(sys.stdin.buffer.read())) if name == "-" else Path(name).open("rb") as file:
            text = "".join(decode_text(file, f"prompt file {name}"))
        prompts.append(text.removesuffix("\n").removesuffix("\r"))  # \n, \r\n or \r
    return prompts or [""]


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
