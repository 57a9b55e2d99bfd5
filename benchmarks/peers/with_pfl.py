"""pfl-research, its FederatedAveraging on a PyTorch model.

With ``processes`` above one it is started by torchrun, as its documentation says, and each process
trains its part of the cohort with one thread.  ``sparse``: gradients of tables."""

import itertools
import os
import sys

import torch

settings = dict(pair.split("=") for pair in sys.argv if pair.startswith(("processes=", "threads=")))
if int(settings.get("processes", 1)) > 1 and "LOCAL_RANK" not in os.environ:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    os.execv(sys.executable, [sys.executable, *run, settings["processes"], *sys.argv])
torch.set_num_threads(int(settings.get("threads", 1)))

from nets_torch import build  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.hyperparam.base import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from work import Clock, Job  # noqa: E402

ENDLESS = 1_000_000


class Ticking(TrainingProcessCallback):
    """Stops the training when there is enough; all processes must agree on that."""

    def __init__(self, clock, net):
        self.clock, self.net = clock, net

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        done = torch.tensor(float(bool(self.clock) and self.clock.tick(self.net.arrays)))
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(done)
        return bool(done), Metrics()


def main():
    job = Job.from_command_line()
    net, criterion = build(job, sparse=bool(job.setting("sparse", 0)))
    net.loss = lambda x, y: criterion(net(x), y)
    net.metrics = lambda x, y: {}
    x, y = torch.from_numpy(job.x).long(), torch.from_numpy(job.y)

    def client(place):
        chosen = torch.from_numpy(job.examples(place // job.cohort)[place % job.cohort]).reshape(-1)
        return Dataset((x[chosen], y[chosen]))

    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    data = FederatedDataset(client, itertools.count().__next__)
    clock = Clock(job) if int(os.environ.get("RANK", 0)) == 0 else None
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=None),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=job.rate,
            local_batch_size=job.batch,
            local_max_grad_norm=job.clip or None,
        ),
        callbacks=[Ticking(clock, net)],
    )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
