"""Attention maps of any checkpoint and any text, for TensorBoard's Attention tab. See --help."""

import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli import ArgumentParser, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpt.tokenizer import Tokenizer

DESCRIPTION = """\
Write how every head of a model attends in texts of yours, for TensorBoard's Attention tab.

  python scripts/watch_attention.py checkpoints/quickstart --prompt "import os; import sys"
  python scripts/watch_attention.py openai-community/gpt2 --prompt "When Mary and John went out," --generate 20
  tensorboard --logdir checkpoints
"""
EPILOG = """\
With --generate the model first continues each prompt, and what it wrote is underlined in the tab. Random tokens that
come twice are captured as well: the induction and duplicate-token scores are defined on them.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="watch_attention.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_checkpoint()
    add = parser.add_argument
    add("--prompt", nargs="+", required=True, metavar="TEXT", help="texts to watch")
    add("--generate", type=int, default=0, metavar="N", help="let the model write N more tokens first (default 0)")
    add("--temperature", type=float, default=1.0, metavar="T", help="of --generate; 0 is greedy (default 1.0)")
    add("--seed", type=int, default=0, help="of --generate (default 0)")
    parser.add_device()
    add(
        "--logdir",
        type=Path,
        default=Path("checkpoints/watched"),
        metavar="DIR",
        help="where to write; each state of a model gets a folder in it (default checkpoints/watched)",
    )
    return parser


def body(argv: list[str]) -> int:
    """Watch."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from torch.utils.tensorboard import SummaryWriter

    from gpt.attention_maps.capture import capture_attention
    from gpt.attention_maps.probes import MAX_PROBE_TOKENS, Probe, repeated_random_probe, text_probe
    from gpt.attention_maps.writer import Capture, write_captures
    from gpt.checkpoint import load_model, steps_trained
    from gpt.cli import choose_device
    from gpt.generation.generate import Request, generate
    from gpt.generation.sampling import Sampling

    if args.generate < 0:
        raise UserError(f"--generate is {args.generate}; it must be at least 0")
    model, tokenizer = load_model(args.checkpoint, choose_device(args.device))
    longest = min(MAX_PROBE_TOKENS, model.config.context_length)
    prompts = [tokenizer.encode(prompt) for prompt in args.prompt]
    for text, prompt in zip(args.prompt, prompts, strict=True):
        if not prompt and not args.generate:
            raise UserError("an empty prompt has nothing to watch; give some text, or --generate")
        if 1 + len(prompt) + args.generate > longest:
            raise UserError(
                f"the prompt {text[:30]!r} makes {1 + len(prompt) + args.generate} tokens with its start and "
                f"--generate, and {longest} can be watched; shorten it, or lower --generate"
            )
    request = Request(args.generate, Sampling(temperature=args.temperature))
    written = generate(model, tokenizer, prompts, request, [args.seed] * len(prompts)) if args.generate else []
    probes: list[Probe] = []
    for number, prompt in enumerate(prompts):
        ids = [tokenizer.eot_id, *prompt, *(written[number].token_ids if written else [])]
        generated_from = 1 + len(prompt) if written else None
        if len(ids) < 2:
            raise UserError("the model ended the text at once: there is nothing to watch; give a prompt")
        probes.append(text_probe(tokenizer, ids, "generated" if written else "prompt", generated_from))
    random = repeated_random_probe(tokenizer, _id_weights(args.checkpoint, tokenizer), model.config.context_length)
    step = steps_trained(args.checkpoint)
    # A folder for each state of a model: in one and the same, TensorBoard drops what is newer than a later event.
    run_dir = args.logdir / _folder_name(args.checkpoint, step)
    with SummaryWriter(str(run_dir)) as board:
        every = [probe for probe in (random, *probes) if probe is not None]
        attention = capture_attention(model, [probe.token_ids for probe in every])
        captures = [Capture(probe, own) for probe, own in zip(every, attention, strict=True)]
        write_captures(board, step, captures, pictures=True)
    log = logging.getLogger("watch_attention")
    for number, prompt in enumerate(args.prompt):
        log.info("watched: %s", prompt + (written[number].text if written else ""))
    programs = Path(os.path.relpath(sys.executable)).parent
    log.info("wrote %s; to see it: %s/tensorboard --logdir %s", run_dir, programs, shlex.quote(str(args.logdir)))
    return 0


def _id_weights(checkpoint: str, tokenizer: "Tokenizer") -> "NDArray[Any]":
    """How often each id occurs in the data of a checkpoint's run, so that the random tokens are those of its training.

    Where that data is not at hand, any id is as good as another.
    """
    import numpy as np
    import yaml

    from gpt.data.manifest import Manifest, SplitTokens

    path = Path(checkpoint)
    config = (path if path.is_dir() else path.parent) / "config.yaml"
    if config.is_file():
        data = Path(yaml.safe_load(config.read_text())["data"]["path"])
        try:
            manifest = Manifest.load(data)
            if manifest.tokenizer == tokenizer.name:
                return SplitTokens(data, manifest, "val").id_counts()
        except ValueError as error:
            logging.getLogger("watch_attention").info("random tokens from all of the vocabulary: %s", error)
    return np.ones(tokenizer.vocab_size)


def _folder_name(checkpoint: str, step: int) -> str:
    """quickstart-step720 for checkpoints/quickstart, openai-community-gpt2 for a name on the Hub."""
    path = Path(checkpoint)
    if not path.exists():
        name = checkpoint.replace("/", "-")
    else:
        name = path.resolve().parent.name if path.is_file() else path.resolve().name
    return f"{name}-step{step}" if step else name


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
