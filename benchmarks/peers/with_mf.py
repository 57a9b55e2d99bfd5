"""Matrix factorisation with FedRecon: fedslice, or a bare loop (``by=hand`` or ``by=gradient``) of
`benchmarks/mf.py`.  No peer that installs today has FedRecon, so nobody else takes part."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from mf import Bare, by_gradient, by_hand, fedrecon, raters
from speed import engine, loop
from work import Clock, Job


def main():
    job = Job.from_command_line()
    people = raters()
    by = {"hand": by_hand, "gradient": by_gradient}.get(job.setting("by", ""))
    if by:
        run = loop(Bare(people, job.setting("clients", "map"), by))
    else:
        run = engine(fedrecon(people, "auto", None))
    Clock(job).blocks(run, dict)


if __name__ == "__main__":
    main()
