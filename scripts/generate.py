"""Generate text from a checkpoint. See --help."""

import argparse
import sys

from gpt.command_line import ArgumentParser, print_json, run

DESCRIPTION = """\
Continue a prompt with a trained model; dropout is off, and a seed gives the same text again.

  python scripts/generate.py checkpoints/quickstart --prompt "The import statement"
  python scripts/generate.py checkpoints/quickstart --temperature 0.8 --top-k 50 --num-samples 3
"""
EPILOG = """\
--json prints one object: {"samples": [{"prompt", "text", "token_ids", "finish_reason"}, ...]}, text and ids
being the continuation only and finish_reason "length" or "eos".
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(
        prog="generate.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder (best.ckpt, else last.ckpt) or .ckpt file")
    parser.add_argument(
        "--prompt", nargs="+", default=[""], metavar="TEXT", help="texts to continue; default: the start of a text"
    )
    parser.add_argument("--max-new-tokens", type=int, default=100, metavar="N", help="most tokens (default 100)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default 1.0)")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens only")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="samples per prompt (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the first sample; the next has the next (default 0)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps; default: the best one here")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Generate."""
    args = parser().parse_args(argv)
    if args.num_samples < 1:
        raise ValueError(f"--num-samples is {args.num_samples}; it must be at least 1")
    # Imported here so that --help answers at once.
    from gpt.checkpoint import load_model
    from gpt.devices import choose_device
    from gpt.generation.generate import check_request, generate
    from gpt.generation.sampling import Sampling

    sampling = Sampling(args.temperature, args.top_k)
    model, tokenizer = load_model(args.checkpoint, choose_device(args.device))
    prompts = [(prompt, tokenizer.encode(prompt)) for prompt in args.prompt]
    for _, prompt_ids in prompts:
        check_request(model, prompt_ids, args.max_new_tokens, args.seed)
    samples = []
    for prompt, prompt_ids in prompts:
        for seed in range(args.seed, args.seed + args.num_samples):
            continuation = generate(model, prompt_ids, tokenizer.eot_id, args.max_new_tokens, sampling, seed)
            text = tokenizer.decode(continuation.token_ids)
            samples.append(
                {
                    "prompt": prompt,
                    "text": text,
                    "token_ids": continuation.token_ids,
                    "finish_reason": continuation.finish_reason,
                }
            )
            if not args.json:
                if len(samples) > 1:
                    print("---")
                print(prompt + text, flush=True)
    if args.json:
        print_json({"samples": samples})
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run(body, argv)


if __name__ == "__main__":
    sys.exit(main())
