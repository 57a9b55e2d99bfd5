"""fedslice: reports are made and checked, as in any run.  Nothing to choose: it does by itself."""

from collections import deque

from prepare import SEED, method, people, whole
from work import Clock, Job

import fedslice as fs


def main():
    job = Job.from_command_line()
    algorithm = method(job.kind, job.sizes, job.steps, job.batch, job.rate, job.clip)
    sampler = fs.sampling.uniform(job.cohort)
    run = fs.simulate(algorithm, people(job.kind, job.folder), sampler=sampler, seed=SEED)

    def rounds(count):
        last = deque(run.rounds(count), maxlen=1)[0]
        assert last.failed == 0

    Clock(job).blocks(rounds, lambda: whole(run))


if __name__ == "__main__":
    main()
