"""Write attention maps of a checkpoint on any text, for TensorBoard's Attention tab. See --help."""

import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path

from gpt.cli import ArgumentParser, run
from gpt.errors import UserError

log = logging.getLogger(__name__)

DESCRIPTION = """\
Write the attention maps of every head on your texts, for TensorBoard's Attention tab.

  python scripts/watch_attention.py checkpoints/quickstart --prompt "import os; import sys"
  python scripts/watch_attention.py openai-community/gpt2 --prompt "When Mary and John went out," --generate 20
  tensorboard --logdir checkpoints
"""
EPILOG = """\
With --generate the model first continues each prompt, and the tab underlines the generated tokens. A repeated random
sequence is captured as well: the induction and duplicate-token scores are defined on it.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="watch_attention.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_checkpoint()
    add = parser.add_argument
    add("--prompt", nargs="+", action="extend", required=True, metavar="TEXT", help="texts to watch")
    add("--generate", type=int, default=0, metavar="N", help="generate N tokens after each prompt (default 0)")
    add("--temperature", type=float, default=1.0, metavar="T", help="of --generate; 0 is greedy (default 1.0)")
    add("--seed", type=int, default=0, help="of --generate (default 0)")
    kinds = (
        "importance of a head: the rise of the loss with its output replaced by its mean over the positions, or by zero"
    )
    add("--ablation", choices=("mean", "zero"), default="mean", help=f"{kinds} (default mean)")
    parser.add_device()
    watched = Path("checkpoints/watched")
    logdir = "output; each checkpoint gets a folder in it (default checkpoints/watched)"
    add("--logdir", type=Path, default=watched, metavar="DIR", help=logdir)
    return parser


def body(argv: list[str]) -> int:
    """Watch."""
    args = parser().parse_args(argv)
    if args.generate < 0:
        raise UserError(f"--generate is {args.generate}; expected at least 0")
    # Imported here so that --help answers at once.
    from gpt.attention_maps.watch import watch_prompts
    from gpt.cli import choose_device
    from gpt.generation.generate import Request
    from gpt.generation.sampling import Sampling

    request = Request(args.generate, Sampling(temperature=args.temperature))
    device = choose_device(args.device)
    run_dir = watch_prompts(args.checkpoint, args.prompt, request, args.seed, device, args.logdir, args.ablation)
    programs = Path(os.path.relpath(sys.executable)).parent
    log.info("wrote %s; view it with: %s/tensorboard --logdir %s", run_dir, programs, shlex.quote(str(args.logdir)))
    return 0


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
