"""fluke, its CentralizedFL, which is FedAvg.

There are as many clients as in a cohort; in each round they take the data of that round's clients.
fluke runs clients one after the other; ``persist`` is whether they keep their model in between,
``threads`` what PyTorch may use, ``sparse`` the gradients of tables."""

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import EarlyStopping, Server
from fluke.utils import FederationObserver
from nets_torch import build
from work import Clock, Job

ENDLESS = 1_000_000


class Scheduled(Client):
    """A client that takes the examples of the round from the schedule."""

    job = None

    def local_update(self, current_round):
        x, y = self.job.client(current_round - 1, self.index)
        self.train_set = FastDataLoader(
            torch.from_numpy(x).long(), torch.from_numpy(y), num_labels=2, batch_size=self.job.batch
        )
        super().local_update(current_round)


class Ticking(FederationObserver):
    def __init__(self, clock, net):
        self.clock, self.net = clock, net

    def end_round(self, round):
        if self.clock.tick(self.net.arrays):
            raise EarlyStopping(round)


def main():
    job = Scheduled.job = Job.from_command_line()
    torch.set_num_threads(job.setting("threads", 1))
    FlukeENV().set_evaluator(None)
    net, criterion = build(job, sparse=bool(job.setting("sparse", 0)))
    optimizer = OptimizerConfigurator(
        DDict(name=torch.optim.SGD, lr=job.rate), DDict(name="StepLR", step_size=ENDLESS)
    )
    keep = bool(job.setting("persist", 1))
    clients = [
        Scheduled(k, None, None, optimizer, criterion, 1, clipping=job.clip, persistency=keep)
        for k in range(job.cohort)
    ]
    server = Server(net, None, clients)
    federation = CentralizedFL(job.cohort, None, {}, clients, server)
    federation.set_callbacks(Ticking(Clock(job), server.model))
    federation.run(ENDLESS, 1.0, finalize=False)


if __name__ == "__main__":
    main()
