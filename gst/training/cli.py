"""`gst fit|validate|test|predict`: LightningCLI over the module and the datamodule."""

from __future__ import annotations

import argparse
import csv
import logging
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from jsonargparse import DefaultHelpFormatter
from jsonargparse.typing import PositiveFloat
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gst.cost import LOSSES, METRICS
from gst.nn import ENCODERS
from gst.training import TRAINING
from gst.training.checkpoints import BackgroundCheckpointIO, Stoppable, check_readable, opened
from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule
from gst.training.processes import gathered, limit_waits, waits_explained
from gst.training.record import LogProgress, Recorder, ReportPage, TerminalProgress, checkpoints_of, folder_of_run
from gst.training.sweeps import FOLDER_OF_TRIAL
from gst.util.addresses import Address, details, place
from gst.util.copies import local_copy
from gst.util.untrusted import OF_TRAININGS, check_classes, check_yaml, read_yaml
from gst.util.writing import atomic_write
from partitioners import METHODS as PARTITIONERS

AN_EXAMPLE = "experiments/configs/giant_synthetic.yaml"
LAST = "runs/giant_synthetic/checkpoints/last.ckpt"
EXAMPLES = {
    "fit": (
        f"--config {AN_EXAMPLE}",
        f"--config {AN_EXAMPLE} --trainer.max_epochs 3 --model.num_fresh 2 --json runs/fit.json",
        f"--config {AN_EXAMPLE} --ckpt_path last",
        f"--config {AN_EXAMPLE} --print_config > mine.yaml",
    ),
    "validate": (f"--ckpt_path {LAST}",),
    "test": (f"--ckpt_path {LAST} --json runs/test.json",),
    "predict": (f"--config {AN_EXAMPLE} --ckpt_path {LAST} --predictions.path runs/scores.csv",),
}
USUAL = """\
--config FILE.yaml           settings; any key of the file is a flag too, as below
--print_config               print all settings as such a file, with comments: --print_config=comments
--ckpt_path FILE|last        checkpoint to evaluate, or to go on from
--seed_everything N          seed of weights and of shuffling
--json FILE                  write the result as JSON; also --quiet, --verbose, --debug
--model.encoder CLASS        gst.nn.{encoders}, or your class; --model.encoder.channels N
--model.head CLASS           gst.nn.Head, or your class
--model.pooling NAME         readout of the nodes of a graph: sum, mean, max, attention, softmax, std, or mean+max ...
--model.num_fresh S          segments of a graph that are encoded with gradient in a step
--model.table true           keep embeddings of the other segments in a table between steps
--model.estimate NAME        use of the table: {estimates}
--model.keep_probability P   share of rows that Stale Embedding Dropout keeps
--model.loss NAME            {losses}, or your class or function
--data.source CLASS          graphs: gst.data.SyntheticPrograms, gst.data.TpuGraphs, gst.data.PygDataset, or your class
--data.store DIR|ADDRESS     where segments are kept once they are cut; --data.cache GB bounds copies here
--data.max_nodes N           most nodes of a segment
--data.method NAME           partitioner: {partitioners}
--data.halo N                hops of context around a segment
--data.split_by NAME         hold out configs, graphs or groups; --data.num_valid N, --data.num_test N
--data.missing_targets skip  leave out targets that are NaN or infinite, which are refused otherwise
--data.graphs_per_step N     graphs in a step of each process
--data.configs_per_graph N   configurations of each graph in a step
--optimizer CLASS            such as torch.optim.AdamW; --optimizer.lr X; --lr_scheduler CLASS
--trainer.max_epochs N       length of the training; also --trainer.max_steps N
--trainer.accelerator NAME   auto, cpu, gpu ...; --trainer.devices N, --trainer.strategy ddp
--trainer.precision NAME     32-true, bf16-mixed or 16-mixed
--trainer.callbacks+=CLASS   such as gst.training.HeadFinetuning or gst.training.PlacedSteps
--trainer.callbacks.monitor M    val/ before a metric: {metrics}
--trainer.default_root_dir DIR   where results go
--predictions.path FILE.csv  where gst predict writes scores"""
SECTIONS = ("trainer", "model", "data", "optimizer", "lr_scheduler", "predictions")

CONFIG = "config.yaml"
"""File with the configuration of a training, in the folder of its directory of checkpoints."""

NOT_FOR_USERS = (
    "💡 Tip: For seamless cloud",  # two advertisements of services, printed whatever the configuration says
    "TPU available: False",  # the line about GPUs stays: those are what people look for
    "`weights_only` was not set, defaulting to `False`",  # on saving; BackgroundCheckpointIO loads weights alone
)


class PredictionWriter(BasePredictionWriter):
    """Callback of `gst predict` that writes `graph,config,score,target` to a CSV file.

    Configurations have the numbers of their file, as in `gst rank --out`, so that repeated ones have a row each. The
    target is what was measured, empty where nothing was. Of several targets the columns are `score_0`, `score_1`, ...,
    `target_0`, `target_1`, ..."""

    def __init__(self, path: str = "runs/predictions.csv") -> None:
        super().__init__(write_interval="epoch")
        self.path = Path(path)

    def write_on_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        predictions = gathered(predictions)
        if not trainer.is_global_zero:
            return
        graphs: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
        for name, config, *result in (row for rows in predictions for row in rows):
            graphs.setdefault(name, {})[config] = (result[0], result[1])
        several = max((len(scores) for each in graphs.values() for scores, _ in each.values()), default=1)
        numbers = [""] if several == 1 else [f"_{k}" for k in range(several)]
        file_rows = getattr(trainer.datamodule.source_of("predict"), "file_rows", None)  # type: ignore[attr-defined]
        with atomic_write(self.path) as file:
            writer = csv.writer(file)
            writer.writerow(["graph", "config", *(f"{what}{k}" for what in ("score", "target") for k in numbers)])
            for name, scored in graphs.items():
                of_file = [(i, i, target) for i, (_, target) in scored.items()]
                for number, config, target in zip(*file_rows(name), strict=True) if file_rows else of_file:
                    if config in scored:
                        measured = ("" if math.isnan(each) else repr(float(each)) for each in np.atleast_1d(target))
                        writer.writerow([name, number, *map(repr, scored[config][0]), *measured])


class SavedConfig(SaveConfigCallback):
    """Callback that saves the configuration of a training, and of no evaluation, also in the folder of its checkpoints'
    directory, where `gst test --ckpt_path FILE` looks for it."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the configuration once the directory of checkpoints is known."""
        if trainer.is_global_zero and (folder := folder_of_run(trainer)) is not None:
            with atomic_write(folder / self.config_filename) as file:
                file.write(self.parser.dump(self.config, skip_none=False))


class Parser(LightningArgumentParser):
    """Parser whose help of a command is short: its description and epilog, or one section of all options."""

    section = ""

    def format_help(self, *arguments: Any, **named: Any) -> str:
        if not self.epilog:
            return super().format_help(*arguments, **named)
        if not self.section:
            return f"usage: {self.usage}\n\n{self.description}\n\n{self.epilog}\n"
        options = re.split(r"\n(?=  --)", super().format_help(*arguments, **named))
        return "\n".join(each for each in options if each.startswith(f"  --{self.section}")) + "\n"


class GstCLI(LightningCLI):
    """LightningCLI with the callbacks and checkpoint writer of this package, and checks of strategy and precision."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the command of this process alone: parsers of the other three would take most of its start."""
        return {sys.argv[1]: LightningCLI.subcommands()[sys.argv[1]]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.add_argument(
            "--collective_timeout", type=PositiveFloat, default=1800.0,
            help="seconds that a process waits for the others, where several train, before it ends with an error",
        )  # fmt: skip

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        section = self.config[self.config.subcommand]
        if path := section.get("ckpt_path"):
            path = section["ckpt_path"] = str(local_copy(path))
            check_readable(str(path), section["model"].as_dict())

    def _parse_ckpt_path(self) -> None:
        """Take the settings of the model from the checkpoint of an evaluation, but for those of the command line. A
        training goes on with its own settings, from a file as from `last`."""
        if (name := self.config.subcommand) == "fit":
            return
        before = self.config[name]["model"].clone()
        super()._parse_ckpt_path()
        flags = [re.split(r"[.=+]", each)[1] for each in sys.argv if each.startswith("--model.")]
        for option in flags:
            self.config[name]["model"][option] = before[option]

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        strategy = self._get(self.config_init, "trainer", default={}).get("strategy")
        by_layers = isinstance(strategy, FSDPStrategy | ModelParallelStrategy)
        if by_layers or strategy in FSDPStrategy.get_registered_strategies():
            name = strategy if isinstance(strategy, str) else type(strategy).__name__
            raise ValueError(
                f"strategy {name} gathers parameters layer by layer, and processes run encoders different numbers of "
                "times; --trainer.strategy ddp keeps them whole in each process"
            )
        trainer: L.Trainer = super().instantiate_trainer(**kwargs)
        if str(trainer.precision).endswith("-true") and trainer.precision != "32-true":
            raise ValueError(
                f"--trainer.precision {trainer.precision} converts what the table and the metrics keep in float32; "
                "bf16-mixed and 16-mixed compute in short numbers where that pays"
            )
        if trainer.world_size > 1 and not self._get(self.config_init, "trainer").get("use_distributed_sampler", True):
            raise ValueError(
                "--trainer.use_distributed_sampler false is for samplers that divide graphs among processes by "
                "themselves; the steps here are divided always: leave it out"
            )
        limit_waits(trainer, self._get(self.config_init, "collective_timeout"))
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # nobody asked for another
            trainer.strategy.checkpoint_io = BackgroundCheckpointIO()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, ModelCheckpoint) and (trial := os.environ.get(FOLDER_OF_TRIAL)):
                callback.dirpath = str(Path(trial).resolve() / "checkpoints")
        trainer.callbacks.insert(0, Recorder())  # type: ignore[attr-defined]
        if self.subcommand == "fit":
            trainer.callbacks.insert(0, Stoppable())  # type: ignore[attr-defined]
        page = ReportPage(shlex.join(["gst", *sys.argv[1:]]))  # for all commands: checkpoints name it
        trainer.callbacks.insert(0, page)  # type: ignore[attr-defined]
        if type(bar := trainer.progress_bar_callback) is RichProgressBar:
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            if sys.stdout.isatty():
                bar.__class__ = TerminalProgress  # with the user's settings
            else:
                callbacks[callbacks.index(bar)] = LogProgress()
        if trainer.num_nodes == 1 and sys.platform == "linux":  # nobody else is to be reached
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                _settle(logger)
        return trainer


def _with_config(arguments: list[str]) -> list[str]:
    """Return arguments with the configuration of the training of `--ckpt_path`, if an evaluation names no other."""
    named = dict(each.split("=", 1) for each in arguments if "=" in each)
    named |= dict(pairwise(arguments))
    if "--ckpt_path" in named:
        opened(named["--ckpt_path"])  # before settings are missed that a configuration beside it would give
    checkpoint = place(named.get("--ckpt_path", ""))
    if arguments[0] == "fit" or any(_config_files(arguments)):
        return arguments
    if isinstance(checkpoint, Address):
        beside = checkpoint.parent.parent / CONFIG
        saved = local_copy(beside) if details(beside) else None
    else:
        saved = checkpoint.resolve().parent.parent / CONFIG if checkpoint.is_file() else None
    if saved is None or not saved.is_file():
        return arguments
    try:
        check_classes(read_yaml(saved), OF_TRAININGS, saved.parent)
    except ValueError as error:
        raise ValueError(f"{saved} beside the checkpoint: {error}; read the file, then give it by --config") from error
    return [arguments[0], f"--config={saved}", *arguments[1:]]


def _names_checkpoint(arguments: Sequence[str]) -> bool:
    """True if an argument or a configuration file names a checkpoint, or help is wanted."""
    if any(each.startswith(("--ckpt_path", "--help", "-h")) for each in arguments):
        return True
    contents = [read_yaml(path) for path in _config_files(arguments)]
    return any(isinstance(content, dict) and content.get("ckpt_path") for content in contents)


def _config_files(arguments: Sequence[str]) -> Iterator[Path]:
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if name in ("--config", "-c") or name.startswith("--config="):
            yield Path(name.partition("=")[2] or value)


def run(arguments: list[str]) -> dict[str, Any]:
    """Run one subcommand; returns the last logged metrics, and the best value of the monitored metric.

    Raises:
        ValueError: an argument, a configuration file or the file of `--ckpt_path` is wrong.
    """
    arguments = _with_config(arguments)
    for path in _config_files(arguments):
        check_yaml(path)
    if arguments[0] != "fit" and not _names_checkpoint(arguments):
        raise ValueError(f"gst {arguments[0]} needs --ckpt_path: without it the model is untrained")
    _silence_what_nobody_can_act_on()
    arguments = _with_section(arguments)
    sys.argv[1:] = arguments  # LightningCLI warns when it is given arguments beside those of the process
    try:
        with _own_run(), waits_explained():
            cli = GstCLI(
                SegmentTrainingModule,
                SegmentDataModule,
                parser_class=Parser,
                save_config_callback=SavedConfig,
                save_config_kwargs={"overwrite": True},
                parser_kwargs={"prog": "gst", "description": "Graph Segment Training (GST)", "exit_on_error": False}
                | {"formatter_class": _HelpFormatter}  # of the commands too
                | {arguments[0]: {"exit_on_error": False, **_help(arguments[0])}},
            )
    except argparse.ArgumentError as error:
        more = f"; --config FILE.yaml gives them, such as {AN_EXAMPLE}" if "required" in error.message else ""
        if "dot import path" in error.message:
            more = "; a class is named by its module, such as gst.data.SyntheticPrograms or gst.nn.SAGE"
        if "--resume" in error.message:
            more = "; a training goes on by --ckpt_path last, or from a file: --ckpt_path FILE"
        raise ValueError(f"{error.message}{more} (see gst {arguments[0]} --help)") from error
    except RuntimeError as error:
        if "Early stopping conditioned on metric" in str(error):
            raise ValueError(str(error)) from error
        if "Error(s) in loading state_dict" not in str(error):
            raise
        first = next((line.strip() for line in str(error).splitlines()[1:]), "")
        raise ValueError(
            f"--ckpt_path: the checkpoint is of another model: {first} Give the --model options of its training"
        ) from error
    except MisconfigurationException as error:
        more = " Without --trainer.accelerator the trainer takes what there is" if "backend found" in str(error) else ""
        raise ValueError(f"{error}{more}") from error
    callback = cli.trainer.checkpoint_callback
    best = getattr(callback, "best_model_score", None)
    callbacks = cli.trainer.callbacks  # type: ignore[attr-defined]
    return {
        "command": shlex.join(["gst", *arguments]),
        "metrics": {key: float(value) for key, value in cli.trainer.callback_metrics.items()},
        "best": None if best is None else {str(getattr(callback, "monitor", "")): float(best)},
        "epochs": cli.trainer.current_epoch,
        "checkpoints": checkpoints_of(cli.trainer),
        "control": next((each.control for each in callbacks if isinstance(each, ReportPage)), {}),
    }


@contextmanager
def _own_run() -> Iterator[None]:
    """Finish the run of W&B that a training began; otherwise the next training of this process would continue it."""
    known = _current_run()
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        run = _current_run()
        if run is not None and run is not known:
            run.finish(exit_code)


def _current_run() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)  # imported where something is logged


def _help(name: str) -> dict[str, Any]:
    """Return usage, description, usual options and examples of a command."""
    from gst.method.estimates import ESTIMATES

    lists: dict[str, Iterable[str]] = {
        "encoders": ENCODERS,
        "estimates": ("auto", *ESTIMATES),
        "losses": LOSSES,
        "metrics": METRICS,
        "partitioners": PARTITIONERS,
    }
    usual = USUAL.format(**{key: ", ".join(names) for key, names in lists.items()})
    options = "\n".join(f"  {each}" for each in usual.splitlines())
    examples = "\n".join(f"  gst {name} {each}" for each in EXAMPLES[name])
    purpose = TRAINING[name][0].upper() + TRAINING[name][1:]
    return {
        "usage": f"gst {name} --config FILE.yaml [--SECTION.NAME VALUE ...]",
        "description": f"{purpose}. Examples are at the end.",
        "epilog": f"usual options:\n{options}\n\nall options:\n"
        f"  gst {name} --help.SECTION        options of {', '.join(SECTIONS)}\n"
        f"  gst {name} --model.encoder.help CLASS, --data.source.help CLASS, --optimizer.help CLASS ...\n\n"
        f"examples:\n{examples}",
    }


def _with_section(arguments: list[str]) -> list[str]:
    """Return arguments with `--help` instead of `--help.SECTION`, whose options the parser then prints."""
    Parser.section = next((each.partition(".")[2] for each in arguments if each.startswith("--help.")), "")
    if Parser.section and Parser.section not in SECTIONS:
        raise ValueError(f"--help.{Parser.section}: the sections are {', '.join(SECTIONS)}")
    return ["--help" if each.startswith("--help.") else each for each in arguments]


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help formatter of jsonargparse that does not wrap the lines of the examples."""


def _silence_what_nobody_can_act_on() -> None:
    # Lightning 2.6 calls what torch 2.9 and later deprecate, whenever a loader moves its batches.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", module=r"lightning\.pytorch")
    # What is logged is equal in all processes; see `gst.training.processes.reduced`.
    warnings.filterwarnings("ignore", r"It is recommended to use `self\.log", module=r"lightning\.pytorch")
    # `Stoppable` says what a new training replaces; one that goes on finds what it goes on from.
    warnings.filterwarnings("ignore", "Checkpoint directory .* is not empty", module=r"lightning\.pytorch")
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(_is_for_users)  # the same function is added once


def _is_for_users(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NOT_FOR_USERS)


def _settle(logger: WandbLogger) -> None:
    """Let W&B write below the directory of this training, without two warnings about options of Lightning."""
    logger._wandb_init.pop("anonymous", None)  # "has no effect and will be removed"
    if logger.save_dir is not None:
        folder = Path(logger.save_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)  # "git root ... does not exist": it is looked for before
        logger._wandb_init["dir"] = str(folder)
