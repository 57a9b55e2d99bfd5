"""Flower's simulation: a ClientApp and a ServerApp with the FedAvg strategy, clients in Ray's
actors.

There are as many nodes as in a cohort, all of them in every round; node k takes the data of the
round's client k.  ``cpus``: how many processors a client has, so that with 1 there are two actors
on two cores, with 2 one.  The number of rounds has to be known beforehand: ``rounds``, after those
until the models are compared."""

import flower_client
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets_torch import build
from work import Clock, Job


def server(job):
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context):
        net, _ = build(job)
        clock = Clock(job)

        def finished(number, arrays):
            def model():
                net.load_state_dict(arrays.to_torch_state_dict())
                return net.arrays()

            if number:
                clock.tick(model)

        given = {
            "folder": str(job.folder),
            "cpus": job.setting("cpus", 1),
            "sparse": bool(job.setting("sparse", 0)),
        }
        FedAvg(fraction_evaluate=0.0, min_available_nodes=job.cohort).start(
            grid,
            ArrayRecord(net.state_dict()),
            num_rounds=job.check + job.setting("rounds", 8),
            train_config=ConfigRecord(given),
            evaluate_fn=finished,
        )

    return app


def main():
    job = Job.from_command_line()
    resources = {"num_cpus": job.setting("cpus", 1), "num_gpus": 0.0}
    run_simulation(
        server(job),
        flower_client.app,
        job.cohort,
        backend_config={"client_resources": resources},
    )


if __name__ == "__main__":
    main()
