"""All algorithms on one page, docs/algorithms.md."""

from fedslice.cli.catalogue import ALGORITHMS
from fedslice.cli.settings import COMMON, explained


def page() -> str:
    """All algorithms in Markdown: docs/algorithms.md."""
    usual = {key: f" = {default}" for key, (default, _) in COMMON.items()}
    common = [f"- `{key}`{usual.get(key, '')}: {meaning}" for key, meaning in explained().items()]
    return (
        INTRODUCTION
        + "\n".join(common)
        + "\n\n"
        + "\n".join(method.text(name, whole=False) for name, method in ALGORITHMS.items())
    )


INTRODUCTION = """# Algorithms

`fedslice algorithms NAME` shows one of them in a shell. This page is written by `fedslice
algorithms --markdown`.

**Notation.** There are N clients. Client i has data D_i and holds the slice S(i) of the model: all
dense leaves and, of each table, the rows that its data mention ([concepts](concepts.md)). A round
draws a cohort of K clients. d is the number of numbers in a client's slice; tau is the number of
local steps, each on a batch of b examples.

**Weights** w_i are |D_i| (`weights="examples"`) or 1 (`"uniform"`). With uniform sampling, weights
by examples follow the pooled objective, as a ratio of two random sums: correct up to O(1/K), but
not exactly. `sampling.weighted` (`sampler=weighted`) draws K clients with replacement, in proportion
to |D_i|, and averages uniformly, with heat by examples: this is exactly unbiased for the same
objective. A client that is drawn twice trains and sends once and counts twice in sums; in a vote
(median, Krum) it has one voice.

All algorithms are recipes made of public parts. In Python they are `fs.recipes.NAME(...)`
(`help(fs.recipes.NAME)` tells all about one); in a shell, `--algorithm NAME`. Corrections and rate
schedules are part of the clients' optimizer, as optax transformations. Everything works on slices
and, unless its page says otherwise, combines with heat, clipping, compression, robust reductions
and optax optimizers:

    pulled = optax.chain(fs.client.proximal(0.01), optax.sgd(0.1))
    fs.recipes.fedsubavg(model, pulled, fs.Work(steps=10, batch=5), heat=heat,
                         server=optax.yogi(0.01), reduce=fs.reduce.trimmed(0.1),
                         stages=[fs.stage.compress(fs.stage.quantise(127))])

    fedslice run movielens-lr --synthetic --algorithm fedsubavg --set server=yogi \\
        --set server_rate=0.01 --set mu=0.01 --set compress=quantise:127 --set reduce=trimmed:0.1

**Local work.** `steps` draws every mini-batch independently from the client's examples (xi ~ D_i);
`epochs` makes shuffled passes. A client's batches are a hash of (seed, round, the client's number).

**Bytes.** Reports count the bytes of what a round sends, packed. Down goes the invitation with all
rows of S(i); up goes the message with the rows that trained, 4 bytes for the number of each row,
coded by the compression if there is one. A client that takes part for the first time also names
S(i), 4 bytes a row, once (Ding et al. 2022, algorithm 1, line 5).

**Robust reductions** (`reduce=`). A row is reduced over those clients of the cohort that hold it.
There are `trimmed` and `median` (Yin et al. 2018), `geometric` (RFA, Pillutla et al. 2022), `krum`
(Blanchard et al. 2017; two clients are compared on what both hold) and `worst` (superquantile).
`clip` bounds the norm of each client's update (not of the gradients of a survey). A vote protects a
row only if enough clients of the cohort hold it, and a cold row has only one or two holders in a
cohort. So if fewer than `quorum` clients hold a row (10; 0 for never), `trimmed` and `median` bound
its holders to the norm of the cohort's median client. `benchmarks/robust.py` draws what a fifth of
bad clients does to a small MovieLens LR:

![Test loss under attack, by reduction](images/robust.png)

Test loss after 40 rounds (0.693 before the first) under sign-flipped (times 10) and colluding
clients, of 302 in all:

| clients a round | mean | trimmed(0.4) | median | geometric | multi-Krum | clip | clip + median |
|---|---|---|---|---|---|---|---|
| 30 | diverged, .909 | .680, .681 | .680, .681 | .689, .686 | .671, .671 | .678, .675 | .679, .679 |
| 50 (the picture) | diverged, .847 | .675, .676 | .674, .675 | .682, .674 | .669, .669 | .679, .675 | .675, .673 |
| 100 | diverged, .874 | .678, .680 | .678, .677 | .680, .674 | .670, .671 | .680, .677 | .677, .676 |

With `quorum` 0 both votes fail at 50 clients (.708, .709 under collusion) and below. That updates
times 100 *lower* the loss in some columns is no merit: they point the right way, and act on cold
rows as heat correction does.

**Compression** (`compress=`). There are `quantise` (QSGD, Alistarh et al. 2017), `largest` (top-k),
`random` (random-k), `sign` and `low_rank` (PowerSGD, Vogels et al. 2019, for dense matrices), with
`feedback` (Karimireddy et al. 2019).

Settings that all algorithms share, with their defaults:

"""
