"""Train a model. See --help."""

import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli import ArgumentParser, print_json, print_text, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.model.config import GPTConfig
    from gpt.training.config import RunConfig
    from gpt.training.run import RunResult

log = logging.getLogger("train")

DESCRIPTION = """\
Train a GPT-2 on prepared data, as a YAML config and flags of the same names say.

  python scripts/train.py --config configs/quickstart.yaml
  python scripts/train.py --config configs/gpt2_small.yaml --data.path data/mine --trainer.max_steps 1000

A run writes checkpoints/RUN_NAME: config.yaml (everything resolved), last.ckpt, best.ckpt and TensorBoard events.
Ctrl-C or SIGTERM finishes the step and saves; the same command with --resume continues as if nothing had happened.
"""
EPILOG = """\
--json prints one object with the keys run_dir, steps, train_loss_nats, val_loss_nats, val_bits_per_byte,
tokens_per_second and seconds.
"""


def parser() -> ArgumentParser:
    """The options beside those of the config."""
    parser = ArgumentParser(prog="train.py", description=DESCRIPTION, epilog=EPILOG, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this and every key of the config, and exit")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file, such as configs/quickstart.yaml")
    parser.add_argument("--resume", action="store_true", help="continue the run, exactly; a new one if there is none")
    parser.add_argument("--check", action="store_true", help="say what the run would be and need, and write nothing")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    return parser


def _shape_of(checkpoint: str) -> "GPTConfig":
    from gpt.checkpoint import load_model  # takes seconds

    return load_model(checkpoint)[0].config


def body(argv: list[str]) -> int:
    """Train."""
    from gpt.training.config_parser import config_parser, parse_config  # here, where Ctrl-C is handled
    from gpt.training.run_folder import find_run, new_run_dir

    args, flags = parser().parse_known_args(argv)
    if args.help:
        print_text(f"{parser().format_help()}\n{config_parser().format_help()}")
        return 0
    if args.config is None:
        raise UserError("give --config FILE, for example configs/quickstart.yaml")
    found = find_run(args.config, flags) if args.resume else None
    if found is not None:
        run_dir, config, flags = found
    else:
        config = parse_config(args.config, flags, _shape_of)
        run_dir = new_run_dir(config, args.config.stem)
        flags = ["--config", str(args.config), *flags]
        if args.resume:
            log.info("there is no run to continue yet: starting %s", run_dir)

    # Imported here, since lightning takes seconds: --help and a misspelt key are answered without it.
    from dataclasses import asdict

    from gpt.training.run import train

    result = train(config, run_dir, flags, resume=found is not None, check_only=args.check)
    if result is None:  # only checked, or the run's first process speaks for all
        return 0
    _report(result, config)
    if args.json:
        print_json(asdict(result))
    return 0


def _report(result: "RunResult", config: "RunConfig") -> None:
    """Log the result, and the commands that come next."""
    from gpt.training.datamodule import TokenDataModule

    if result.seconds == 0:  # it had ended before, and said so
        log.info("validation loss %.4f nats (%.4f bits per byte)", result.val_loss_nats, result.val_bits_per_byte)
    else:
        log.info(
            "done: step %d after %.0f s (training alone %s tokens/s), last training loss %.4f, "
            "validation loss %.4f nats (%.4f bits per byte)",
            result.steps,
            result.seconds,
            f"{result.tokens_per_second:,.0f}",
            result.train_loss_nats,
            result.val_loss_nats,
            result.val_bits_per_byte,
        )
    prompt = TokenDataModule(config).prompt
    programs = Path(os.path.relpath(sys.executable)).parent
    log.info(
        "next, text:      %s/python scripts/generate.py %s --prompt%s --temperature 0.8 --top-k 50",
        programs,
        shlex.quote(result.run_dir),
        ("=" if prompt.startswith("-") else " ") + shlex.quote(prompt),
    )
    log.info("next, attention: %s/tensorboard --logdir %s", programs, shlex.quote(config.checkpoints_dir))


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
