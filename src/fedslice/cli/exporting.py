"""The command ``export``: the trained rows of a run under their names."""

import argparse
from pathlib import Path
from typing import Any

from fedslice.cli import export
from fedslice.files.writing import writing


def export_run(options: argparse.Namespace) -> None:
    """The trained rows under their names."""
    model = export.read_model(options.run)
    with writing(options.file):
        files = export.export(model, options.file)
    for file in files:
        print(f"written: {file}")


def add_to(commands: Any) -> None:
    """The subcommand ``export``."""
    parser = commands.add_parser(
        "export", help="the trained tables of a run, with your names for the rows"
    )
    parser.add_argument("run", type=Path, help="the --out folder of a run")
    parser.add_argument(
        "file",
        type=Path,
        help="to write: .npz, .safetensors or .parquet (with NAME.dense.parquet beside it)",
    )
    parser.set_defaults(act=export_run)
