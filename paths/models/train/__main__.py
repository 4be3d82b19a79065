"""Makes the small model that is shipped: its problems, tokenizer, training and export."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer

from paths.api import UserError
from paths.models.config import ModelConfig
from paths.models.train.card import write_card
from paths.models.train.evaluate import evaluate, result
from paths.models.train.export import load_model, save_model
from paths.models.train.model import TrainedModel
from paths.models.train.optimizer import OptimizerOptions
from paths.models.train.parameters import computed
from paths.models.train.problems.describe import describe, json_lines
from paths.models.train.problems.stream import test_set
from paths.models.train.tokenizer import save_tokenizer
from paths.models.train.trainer import CURVE, STATE, Settings, Trainer

MODEL = Path(__file__).parents[3] / "conf" / "model" / "tiny_v32.yaml"
TOKENIZER = "tokenizer.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        options.do(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paths.models.train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="print the distribution of the problems").set_defaults(do=_describe)
    command = commands.add_parser("problems", help="write the held-out problems as JSON lines")
    command.add_argument("file", type=Path)
    command.set_defaults(do=_problems)
    command = commands.add_parser("tokenizer", help="write tokenizer.json into a folder")
    command.add_argument("folder", type=Path)
    command.set_defaults(do=_tokenizer)
    _add_run(commands.add_parser("run", help="train; the folder keeps state, tokenizer and learning curve"))
    command = commands.add_parser("export", help="write the state of a run as an HF folder in bf16")
    command.add_argument("run", type=Path)
    command.add_argument("folder", type=Path)
    command.set_defaults(do=_export)
    command = commands.add_parser("evaluate", help="score an exported folder on the held-out problems")
    command.add_argument("folder", type=Path)
    command.add_argument("--shots", type=int, default=5)
    command.add_argument("--number", type=int, default=500)
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--dense", action="store_true", help="attend to everything, not to the selection")
    command.add_argument("--wrong", type=int, default=0, help="print so many wrong answers")
    command.set_defaults(do=_evaluate)
    command = commands.add_parser(
        "card", help="score an exported folder in several ways and write its model card"
    )
    command.add_argument("run", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("--number", type=int, default=500)
    command.add_argument("--threads", type=int, default=1)
    command.set_defaults(do=_card)
    return parser


def _add_run(command: argparse.ArgumentParser) -> None:
    defaults, rates = Settings(steps=0), OptimizerOptions()
    command.add_argument("folder", type=Path)
    command.add_argument("--steps", type=int, required=True)
    begin = command.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue from the folder's state")
    begin.add_argument("--start-from", type=Path, help="weights of an exported folder, optimizer afresh")
    command.add_argument("--seed", type=int, default=defaults.seed)
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--muon-lr", type=float, default=rates.muon_lr)
    command.add_argument("--adam-lr", type=float, default=rates.adam_lr)
    command.add_argument("--embed-lr", type=float, default=rates.embed_lr)
    command.add_argument("--evaluate-every", type=int, default=defaults.evaluate_every)
    command.add_argument("--question-weight", type=float, default=defaults.question_weight)
    command.set_defaults(do=_run)


def _hf() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(MODEL.read_text(encoding="utf-8"))["hf_config"]
    return loaded


def _describe(_: argparse.Namespace) -> None:
    print(describe(), end="")


def _problems(options: argparse.Namespace) -> None:
    options.file.write_text(json_lines(test_set()), encoding="utf-8")


def _tokenizer(options: argparse.Namespace) -> None:
    print(save_tokenizer(options.folder))


def _run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    state = options.folder / STATE
    if state.is_file() and not options.resume:
        raise UserError(f"{state} is there: add --resume to continue it, or give another folder")
    if not (options.folder / TOKENIZER).is_file():
        save_tokenizer(options.folder)
    tokenizer = Tokenizer.from_file(str(options.folder / TOKENIZER))
    rates = OptimizerOptions(muon_lr=options.muon_lr, adam_lr=options.adam_lr, embed_lr=options.embed_lr)
    settings = Settings(
        steps=options.steps,
        seed=options.seed,
        evaluate_every=options.evaluate_every,
        question_weight=options.question_weight,
        optimizer=rates,
    )
    trainer = Trainer(_hf(), tokenizer, settings, options.folder)
    if options.resume:
        trainer.resume()
    elif options.start_from:
        trainer.parameters = load_model(options.start_from, trainer.config)
    trainer.run()


def _export(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer.from_file(str(options.run / TOKENIZER))
    trainer = Trainer(_hf(), tokenizer, Settings(steps=0), options.run)
    trainer.resume()
    save_model(options.folder, _hf(), trainer.parameters, dtype=torch.bfloat16)
    tokenizer.save(str(options.folder / TOKENIZER))
    size = sum(path.stat().st_size for path in options.folder.iterdir())
    print(f"{options.folder}: {size / 1e6:.1f} MB after step {trainer.step}")


def _evaluate(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    config = ModelConfig.from_hf(json.loads((options.folder / "config.json").read_text(encoding="utf-8")))
    score = evaluate(
        TrainedModel(config, max_length=2048),
        computed(load_model(options.folder, config), torch.bfloat16),
        Tokenizer.from_file(str(options.folder / TOKENIZER)),
        shots=options.shots,
        number=options.number,
        sparse=not options.dense,
        mtp=True,
        final=True,
    )
    print(json.dumps(score.as_point() | {"problems": score.total}))
    wrong = [(problem, text) for problem, text in score.answers if result(text) != problem.value]
    for problem, text in wrong[: options.wrong]:
        print(f"\n{problem.template}\n{problem.question}\n--- expected\n{problem.answer}\n--- given\n{text}")


def _card(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    run = json.loads((options.run / CURVE).read_text(encoding="utf-8"))
    written = write_card(options.folder, run=run, number=options.number)
    print(written)


if __name__ == "__main__":
    sys.exit(main())
