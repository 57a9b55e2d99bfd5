"""What runs in Flower's actors: a ClientApp, in a module of its own for them to import."""

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from nets_torch import build
from work import Job

app = ClientApp()


@functools.cache
def ready(folder, cpus, sparse):
    """Once in each process."""
    torch.set_num_threads(cpus)
    job = Job(folder, "unused")
    return job, *build(job, sparse)


@app.train()
def train(message: Message, context: Context):
    given = message.content["config"]
    job, net, criterion = ready(given["folder"], given["cpus"], given["sparse"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = job.client(given["server-round"] - 1, context.node_config["partition-id"])
    x, y = torch.from_numpy(x).long(), torch.from_numpy(y)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=job.rate)
    for own, label in zip(x.split(job.batch), y.split(job.batch), strict=True):
        optimizer.zero_grad()
        criterion(net(own), label).backward()
        if job.clip:
            torch.nn.utils.clip_grad_norm_(trained, job.clip)
        optimizer.step()
    arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
