"""FedAvg and FedSubAvg on a recommender whose rows are hot and cold.  Settings on top; read from
top to bottom."""

import optax

import fedslice as fs

SCALE = 0.1  # of MovieLens-1M's 6,040 users
ROUNDS, COHORT, STEPS, BATCH, RATE = 100, 50, 10, 5, 0.1

task = fs.tasks.movielens_lr.synthetic(scale=SCALE)
heat = task.train.heat(task.model)
print(
    f"{len(task.train):,} clients, {task.train.examples:,} examples, heat dispersion"
    f" {heat.dispersion:,.0f}"
)

work = fs.Work(steps=STEPS, batch=BATCH)
methods = [
    fs.recipes.fedavg(task.model, optax.sgd(RATE), work),
    fs.recipes.fedsubavg(task.model, optax.sgd(RATE), work, heat=heat),
]
score = fs.Evaluator(task.model, task.test)
for method in methods:
    run = fs.simulate(method, task.train, sampler=fs.sampling.uniform(COHORT), seed=0)
    for report in run.rounds(ROUNDS):
        if report.round % 20 == 0:
            print(f"{method.name:<10} round {report.round:>3}: {score(run.params(score.ids()))}")
