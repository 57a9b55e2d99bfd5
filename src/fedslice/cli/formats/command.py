"""The subcommand ``fedslice export RUN FILE``."""

import argparse
from pathlib import Path
from typing import Any

from fedslice.cli.export import read_model
from fedslice.cli.formats.files import export
from fedslice.cli.predict import load
from fedslice.files.writing import writing


def export_run(options: argparse.Namespace) -> None:
    """Write the model of a run for another program."""
    model = read_model(options.run)
    if model.features is not None and options.file.suffix in (".onnx", ".pt"):
        load(options.run)  # refuses what cannot predict from one model
    with writing(options.file):
        files = export(model, options.file)
    for file in files:
        print(f"written: {file}")


def add_to(commands: Any) -> None:
    """To the subcommands."""
    parser = commands.add_parser(
        "export",
        help="the model of a run for other programs: safetensors, npz, Parquet, CSV, PyTorch, ONNX",
        description=(
            "Write the trained model of a run, with your names for its rows and, on your own data,"
            " its preprocessing: all that is needed to predict."
        ),
    )
    parser.add_argument("run", type=Path, help="the --out folder of a run, or best/ in it")
    parser.add_argument(
        "file",
        type=Path,
        help="to write; its ending is the format: .safetensors, .npz, .parquet, .csv, .pt or .onnx",
    )
    parser.set_defaults(act=export_run)
