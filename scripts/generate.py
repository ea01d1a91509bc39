"""Generate text from a checkpoint. See --help."""

import argparse
import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli import ArgumentParser, print_json, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.generation.generate import Continuation, Piece

DESCRIPTION = """\
Continue prompts with a trained model; dropout is off, and a seed gives the same text again.

  python scripts/generate.py checkpoints/quickstart --prompt "The import statement"
  python scripts/generate.py checkpoints/quickstart --temperature 0.8 --top-k 50 --num-samples 3 --stream
  python scripts/generate.py openai-community/gpt2 --prompt-file letter.txt --stop $'\\n\\n'
  echo "Once upon" | python scripts/generate.py gpt2 --prompt-file - --quantize int8
"""
EPILOG = """\
--json prints one object: {"samples": [{"prompt", "text", "token_ids", "finish_reason"}, ...]}, of the
continuation only (a stop text is in its ids and not in its text); finish_reason is "length", "eos" (the model ended the
text) or "stop". Speed goes to stderr.
"""
_ROWS_AT_ONCE = 32  # of one batch; a row of GPT-2 small takes 72 MB of keys and values


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="generate.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_checkpoint()
    add = parser.add_argument
    add("--prompt", nargs="+", default=[], metavar="TEXT", help="texts to continue; default: the start of a text")
    add(
        "--prompt-file",
        nargs="+",
        default=[],
        metavar="F",
        help="files, each a prompt (but its last line end); - is standard input",
    )
    add("--max-new-tokens", type=int, default=100, metavar="N", help="most tokens (default 100)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default 1.0)")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens only")
    add("--top-p", type=float, default=1.0, metavar="P", help="among the likeliest that make up P (default 1: all)")
    add("--min-p", type=float, default=0.0, metavar="P", help="not what is less likely than P times the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: repeat less (default 1)")
    add("--stop", nargs="+", default=[], metavar="TEXT", help="texts that end it; they are not printed")
    add("--num-samples", type=int, default=1, metavar="N", help="samples per prompt (default 1)")
    add("--seed", type=int, default=0, help="of the first sample; the next has the next (default 0)")
    parser.add_device()
    add("--quantize", choices=("int8",), help="8-bit weights: faster on a CPU, from about d_model 384 on")
    add("--no-cache", action="store_true", help="read everything anew for each token: slow, for comparison")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--stream", action="store_true", help="print text as it comes, one sample after the other")
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
    from gpt.generation.decode_weights import lay_out_for_decoding
    from gpt.generation.generate import Request, check_seeds, stream
    from gpt.generation.sampling import Sampling

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty)
    request = Request(args.max_new_tokens, sampling, tuple(args.stop), not args.no_cache)
    prompts = _read_prompts(args)
    device = choose_device(args.device)
    model, tokenizer = load_model(args.checkpoint, device)
    samples = [(prompt, tokenizer.encode(prompt)) for prompt in prompts for _ in range(args.num_samples)]
    seeds = [args.seed + number for _ in prompts for number in range(args.num_samples)]
    check_seeds(seeds)
    lay_out_for_decoding(model, args.quantize)
    if args.quantize and model.config.d_model < 384:  # docs/experiments.md
        logging.getLogger("generate").warning("a model this small is slower in 8 bits")
    watch = _Watch()
    finished: list[Continuation] = []
    rows_at_once = 1 if args.stream else _ROWS_AT_ONCE
    for start in range(0, len(samples), rows_at_once):
        batch = samples[start : start + rows_at_once]
        done: dict[int, Continuation] = {}
        if args.stream:
            print("---\n" * (start > 0) + batch[0][0], end="", flush=True)
        for piece in stream(model, tokenizer, [ids for _, ids in batch], request, seeds[start : start + len(batch)]):
            watch.see(piece)
            if args.stream:
                print(piece.text, end="", flush=True)
            if piece.finished:
                done[piece.row] = piece.finished
        if args.stream:
            print()
        finished += [done[row] for row in range(len(batch))]
    if args.json:
        print_json({"samples": [_as_json(prompt, c) for (prompt, _), c in zip(samples, finished, strict=True)]})
    elif not args.stream:
        print("\n---\n".join(prompt + c.text for (prompt, _), c in zip(samples, finished, strict=True)))
    watch.report(sum(len(continuation.token_ids) for continuation in finished))
    return 0


def _read_prompts(args: argparse.Namespace) -> list[str]:
    prompts = list(args.prompt)
    for name in args.prompt_file:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        try:
            prompts.append(content.decode().removesuffix("\n"))
        except UnicodeDecodeError as error:
            raise UserError(f"prompt file {name} is not UTF-8: byte {error.start} is not; convert it") from None
    return prompts or [""]


def _as_json(prompt: str, continuation: "Continuation") -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": continuation.text,
        "token_ids": continuation.token_ids,
        "finish_reason": continuation.finish_reason,
    }


class _Watch:
    """Measures the time to the first text, and the rate of all tokens."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: float | None = None

    def see(self, piece: "Piece") -> None:
        if self._first is None:
            self._first = time.perf_counter()

    def report(self, tokens: int) -> None:
        if self._first is None or tokens == 0:
            return
        rate = tokens / (time.perf_counter() - self._started)
        logging.getLogger("generate").info(
            "first text after %.2f s, %d tokens, %.1f tokens/s", self._first - self._started, tokens, rate
        )


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
