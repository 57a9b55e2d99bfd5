"""A plain PyTorch loop: each client starts from a copy of the model, takes its steps, and what it
gained is added up.  ``sparse`` gradients of tables, and how many ``threads`` PyTorch may use."""

import itertools

import torch
from nets_torch import build
from work import Clock, Job


def main():
    job = Job.from_command_line()
    torch.set_num_threads(job.setting("threads", 1))
    net, criterion = build(job, sparse=bool(job.setting("sparse", 0)))
    trained = [p for p in net.parameters() if p.requires_grad]
    x, y = torch.from_numpy(job.x).long(), torch.from_numpy(job.y)
    clock = Clock(job)
    for number in itertools.count():
        first = [p.detach().clone() for p in trained]
        total = [torch.zeros_like(p) for p in first]
        for own in torch.from_numpy(job.examples(number)).long():
            with torch.no_grad():
                for p, start in zip(trained, first, strict=True):
                    p.copy_(start)
            optimizer = torch.optim.SGD(trained, lr=job.rate)
            for batch in own:
                optimizer.zero_grad()
                criterion(net(x[batch]), y[batch]).backward()
                if job.clip:
                    torch.nn.utils.clip_grad_norm_(trained, job.clip)
                optimizer.step()
            with torch.no_grad():
                for p, start, gained in zip(trained, first, total, strict=True):
                    gained.add_(p).sub_(start)
        with torch.no_grad():
            for p, start, gained in zip(trained, first, total, strict=True):
                p.copy_(start + gained / job.cohort)
        if clock.tick(net.arrays):
            break


if __name__ == "__main__":
    main()
