"""Every algorithm by name: what the command line builds, and the text of ``fedslice algorithms
NAME`` and of the docs.

d numbers in a model (a client's slice of it), tau local steps of batch b, D_i the client's
examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedslice import recipes
from fedslice.cli import builders
from fedslice.cli.settings import COMMON, CONSTANTS, Settings, change_of, explained, nearest
from fedslice.errors import InputError
from fedslice.tasks.base import Task
from fedslice.types import Algorithm

Options = Mapping[str, tuple[Any, str]]
HEAT: Options = {"heat": (False, "correct rows by their heat, as FedSubAvg does")}
PROXIMAL: Options = {"mu": (0.0, "proximal term, as in FedProx")}
ON_TABLES = {"heat": lambda task: bool(task.model.tables)}
UNIFORM = {"weights": "uniform"}
NEEDS_SUM = "robust reductions (its server state must stay the mean of the clients' memories)"


@dataclass(frozen=True)
class Method:
    """One algorithm.  ``options`` are its own settings with default and meaning; with ``parts`` it
    becomes another method, so in a comparison they must be asked for by name; ``unused`` are common
    settings that it ignores, ``fixed`` those that it chooses itself, as values or functions of the
    task."""

    summary: str
    equation: str
    citation: str
    when: str
    messages: str
    gradients: str
    build: Callable[[Task, Settings], Algorithm]
    memory: str = "none"
    limits: str = ""
    options: Options = field(default_factory=dict)
    parts: Options = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    pooled: bool = False
    defaults: Mapping[str, Any] = field(
        default_factory=dict
    )  # of shared settings, where it has its own

    def text(self, name: str) -> str:
        """The page of this algorithm, in Markdown."""
        own, parts = (
            [f"- `{key}` = {default}: {meaning}" for key, (default, meaning) in some.items()]
            for some in (self.options, self.parts)
        )
        lines = [
            f"## {name}\n\n{self.summary[0].upper()}{self.summary[1:]}.\n",
            "\n".join(f"    {line}" for line in self.equation.splitlines()) + "\n",
            f"{self.citation}\n\n{self.when}\n",
            (
                f"A round sends {self.messages}; gradients of {self.gradients} examples a client;"
                f" client memory: {self.memory}."
            ),
            f"Cannot be combined with: {self.limits}." if self.limits else "",
            "\nSettings of its own:\n\n" + "\n".join(own) if own else "",
            (
                f"\nWhat it can be combined with (in compare as {name}:KEY=VALUE):\n\n"
                + "\n".join(parts)
                if parts
                else ""
            ),
            f"\nFixed by its definition: {', '.join(self.fixed)}." if self.fixed else "",
            (
                f"\nShared settings that it does not use: {', '.join(self.unused)}."
                if self.unused
                else ""
            ),
        ]
        return "\n".join(line for line in lines if line) + "\n"


_CLIENT = ("client", "gradient_clip")
_SERVER = ("server", "server_rate", "server_schedule")
_MU = "strength of the pull to the global model"


def _server(name: str, rule: str, server: str, rate: float) -> Method:
    """FedAvg with one of the server optimizers of FedOpt, under its own name."""
    return Method(
        f"FedAvg with {name} on the server",
        f"delta = sum_i w_i delta_i / sum_i w_i\n{rule}",
        (
            "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019."
            if server == "momentum"
            else "Reddi et al., Adaptive Federated Optimization, ICLR 2021 (optax's rule"
            + (
                ", with bias correction, which the paper leaves out; b1 0.9, b2 0.99, eps 1e-3)."
                if server != "adagrad"
                else ": v from 0.1, eps 1e-7 under the root; the paper's is sqrt(v) + eps)."
            )
        ),
        "Rates of client and server are tuned together. On tables it is lazy: rows outside the"
        " round keep value and moments.",
        "2d",
        "tau b",
        builders.family(recipes.fedavg),
        parts={**HEAT, **PROXIMAL},
        fixed={"server": server},
        defaults={"server_rate": rate},
    )


ALGORITHMS: dict[str, Method] = {
    "fedavg": Method(
        "mean of the clients' updates; with a server optimizer FedOpt (FedAvgM, FedAdagrad,"
        " FedAdam, FedYogi)",
        "delta_i = (tau local steps from x) - x\nx <- ServerOpt(x, -sum_i w_i delta_i / sum_i w_i)",
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,"
        " AISTATS 2017; Reddi et al., Adaptive Federated Optimization, ICLR 2021 (optax's"
        " optimizers, Adam with bias correction).",
        "The baseline, and the choice where all clients hold the whole model. On tables every"
        " server optimizer is lazy: rows outside the round neither move nor cost anything.",
        "2d",
        "tau b",
        builders.family(recipes.fedavg),
        parts={**HEAT, **PROXIMAL},
    ),
    "fedsubavg": Method(
        "FedAvg with every row's update corrected by its heat N/n_m",
        "x_m <- x_m + c_m * sum_i w_i delta_{i,m} / sum_i w_i\nc_m = sum_all w / sum_{i: m in S(i)}"
        " w_i    (N / n_m for uniform weights; 1 for dense leaves)",
        "Ding et al., Federated Submodel Optimization for Hot and Cold Data Features, NeurIPS"
        " 2022.",
        "Wherever rows differ in heat. A row held by one client moves about N/K times as far as"
        " that client's update, so a rate that suits FedAvg can be too large; --set clip=1 helps."
        " Over all cohorts the mean round is the mean over each row's holders: exactly with"
        " weights=uniform, and with sampler=weighted; weights=examples, the paper's experiments,"
        " make a ratio estimator, right up to O(1/K).",
        "2d",
        "tau b",
        builders.family(recipes.fedsubavg),
        parts=PROXIMAL,
        fixed={"heat": True},
    ),
    "fedavgm": _server("momentum 0.9", "m <- 0.9 m + delta,   x <- x + eta_s m", "momentum", 1.0),
    "fedadagrad": _server(
        "Adagrad", "v <- v + delta^2,   x <- x + eta_s delta / sqrt(v + eps)", "adagrad", 0.1
    ),
    "fedadam": _server(
        "Adam",
        "m, v <- moments of delta (bias-corrected),   x <- x + eta_s m / (sqrt(v) + eps)",
        "adam",
        0.01,
    ),
    "fedyogi": _server(
        "Yogi",
        "m as Adam's,   v <- v - (1 - b2) sign(v - delta^2) delta^2   (both from 1e-6,"
        " bias-corrected)\nx <- x + eta_s m / (sqrt(v) + eps)",
        "yogi",
        0.01,
    ),
    "fedsgd": Method(
        "one full-batch gradient of each client, one server step",
        "x <- ServerOpt(x, sum_i w_i grad f_i(x) / sum_i w_i)",
        "McMahan et al., AISTATS 2017.",
        "When communication is free and exact gradients matter; with all clients it is gradient"
        " descent.",
        "2d",
        "|D_i|",
        builders.fedsgd,
        parts=HEAT,
        unused=(*_CLIENT, "client_rate", "client_schedule", "steps", "epochs", "batch"),
    ),
    "central": Method(
        "SGD on the pooled data, as many examples a round: what federation is compared with",
        "tau steps on the pooled data with batch K b",
        "Ding et al. 2022, the baseline CentralSGD.",
        "To see what federation costs.",
        "nothing",
        "tau K b",
        builders.central,
        pooled=True,
        unused=(*_SERVER, "weights", "clip", "compress", "feedback", "reduce", "client_schedule"),
    ),
    "fedprox": Method(
        "FedAvg with a proximal term that pulls clients towards the global model",
        "local loss F_i(y) + mu/2 ||y - x||^2",
        "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (mu = 0.01 in Ding"
        " et al. 2022).",
        "Unequal or long local work that drifts apart.",
        "2d",
        "tau b",
        builders.family(recipes.fedprox, "mu"),
        options={"mu": (0.01, _MU + " (Ding et al. 2022)")},
        parts=HEAT,
    ),
    "fednova": Method(
        "updates divided by local progress, so that clients with more steps do not count more",
        "x <- x - tau_eff sum_i p_i G_i / ||a_i||_1,   tau_eff = sum_i p_i ||a_i||_1",
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated"
        " Optimization, NeurIPS 2020.",
        "Local epochs over clients of unequal size. ||a_i||_1 follows from the clients' optimizer"
        " (sgd or momentum) and mu.",
        "2d",
        "tau b",
        builders.fednova,
        parts={**HEAT, **PROXIMAL},
    ),
    "scaffold": Method(
        "local steps with the drift taken out by control variates",
        "y <- y - eta (g(y) - c_i + c),   c_i+ = c_i - c + (x - y) / (tau eta)   (option 1: grad"
        " f_i(x))\nx <- x + eta_g mean(y_i - x),   c <- c + (K/N) mean(c_i+ - c_i)",
        "Karimireddy et al., SCAFFOLD, ICML 2020. With weights=examples the weighted case of Ding"
        " et al. 2022 (D.4): both means, and c, by |D_i|.",
        "Few, stable clients (cross-silo) with heterogeneous data: its fixed point is the true"
        " optimum, FedAvg's is not. It is the published method on tables too: clients move by -tau"
        " eta c the rows that they do not hold, which the server does for them, also for rows"
        " outside the round (when they are next read). So a cold row is as slow as in FedAvg;"
        " scaffold-heat corrects that.",
        "4d",
        "tau b (option 1: tau b + |D_i|)",
        builders.scaffold(recipes.scaffold),
        memory="one variate of the client's own slice",
        limits=NEEDS_SUM + "; on tables clip and compress (holders send more than y - x)",
        options={"option": (2, "1 or 2 of the paper, whose experiments use 2")},
        unused=(*_CLIENT, "client_schedule", "server", "server_schedule"),
    ),
    "scaffold-heat": Method(
        "SCAFFOLD among the holders of each row, heat-corrected as FedSubAvg is",
        "as scaffold, but c_m is the mean over the clients that hold row m, they alone move it,"
        " and\nx_m <- x_m + eta_g N/n_m mean(y_i - x)",
        "fedslice's own: Karimireddy et al. 2020 with the correction of Ding et al. 2022. No paper"
        " has published it.",
        "As scaffold, on models with cold rows. It is no baseline of the FedSubAvg paper.",
        "4d",
        "tau b (option 1: tau b + |D_i|)",
        builders.scaffold(recipes.scaffold_heat),
        memory="one variate of the client's own slice",
        limits=NEEDS_SUM,
        options={"option": (2, "1 or 2 of the paper, whose experiments use 2")},
        fixed=ON_TABLES,
        unused=(*_CLIENT, "client_schedule", "server", "server_schedule"),
    ),
    "scaffold-approximate": Method(
        "SCAFFOLD's stateless server-side approximation",
        "d <- (N - K)/N d + (K/N) sum_i w_i delta_i / sum_i w_i,   x <- x + d",
        "Ding et al. 2022, appendix D.2, eq. 47.",
        "The baseline of the FedSubAvg paper's CTR tasks. On tables it is lazy, a choice: rows"
        " outside the round wait with their d, where eq. 47 moves all coordinates in every round.",
        "2d",
        "tau b",
        builders.approximate,
        parts=HEAT,
        unused=(*_SERVER, "client_schedule"),
    ),
    "mime": Method(
        "clients step with the server's optimizer, its state frozen, and a corrected gradient",
        "c = mean_i grad f_i(x);   y <- y - U(g(y; xi) - g(x; xi) + c, s);   x <- x + mean(y_i -"
        " x);   s moves with c",
        "Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning,"
        " NeurIPS 2021.",
        "Cross-device runs with momentum or adaptive steps. --set client=momentum chooses U. On"
        " tables c is the mean over the row's holders in the cohort, and heat corrects the update"
        " alone. U is optax's rule, a choice: Adam advances v by the step's own gradient before it"
        " uses it (and forgets that again), where the paper's U takes v as it stands in s.",
        "4d and the optimizer's state",
        "2 tau b + |D_i|",
        builders.mime(lite=False),
        fixed=ON_TABLES,
        unused=(*_SERVER, "client_schedule"),
    ),
    "mimelite": Method(
        "Mime without the gradient correction",
        "y <- y - U(g(y; xi), s);   x <- x + mean(y_i - x);   s moves with the mean of grad f_i(x)",
        "Karimireddy et al., NeurIPS 2021.",
        "As Mime, in one trip. With SGD it is FedAvg. On tables take heat=yes, or the server's"
        " statistics of cold rows are too small.",
        "3d and the optimizer's state",
        "tau b + |D_i|",
        builders.mime(lite=True),
        parts=HEAT,
        unused=(*_SERVER, "client_schedule"),
    ),
    "feddane": Method(
        "a survey of the cohort's gradients, then proximal local steps with a linear correction",
        "min_y F_i(y) + <mean_j grad F_j(x) - grad F_i(x), y - x> + mu/2 ||y - x||^2",
        "Li et al., FedDANE: A Federated Newton-Type Method, 2019.",
        "Full participation, smooth losses; with small cohorts the surveyed gradient is noisy. On"
        " tables it is the mean over the row's holders in the cohort, and heat corrects the update"
        " alone.",
        "4d",
        "tau b + 2 |D_i|",
        builders.feddane,
        options={"mu": (0.01, _MU + " (our choice)")},
        fixed=ON_TABLES,
        unused=(*_SERVER, "client_schedule"),
    ),
    "feddyn": Method(
        "dynamic regularisation: a dual variable on each client",
        "min_y F_i(y) + <lambda_i, y - x> + mu/2 ||y - x||^2,   lambda_i <- lambda_i + mu (y - x)\n"
        "lambda <- lambda + (K/N) mu mean(y_i - x),   x <- x + mean(y_i - x) + lambda / mu",
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.",
        "Few, stable clients: converges to a true stationary point with long local work. On tables"
        " it is lazy, a choice: rows outside the round wait with their lambda, where the paper"
        " moves all coordinates by lambda / mu in every round.",
        "2d",
        "tau b",
        builders.feddyn,
        memory="one dual of the client's own slice",
        limits=NEEDS_SUM + "; clip and compress (the duals must match the updates)",
        options={"mu": (0.1, "of the regulariser (our choice)")},
        parts=HEAT,
        fixed=UNIFORM,
        unused=(*_SERVER, "client_schedule"),
    ),
    "fedpd": Method(
        "the primal-dual method, all clients in every round",
        "as feddyn on the client;   x <- mean(y_i + lambda_i / mu)",
        "Zhang et al., FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data,"
        " 2021.",
        "Cross-silo with full participation: --set sampler=full.",
        "2d",
        "tau b",
        builders.fedpd,
        memory="one dual of the client's own slice",
        limits=(
            "samplers other than full; robust reductions, clip and compress (the duals must match"
            " the updates)"
        ),
        options={"mu": (0.1, "of the regulariser (our choice)")},
        parts=HEAT,
        fixed=UNIFORM,
        unused=(*_SERVER, "client_schedule"),
        defaults={"sampler": "full"},
    ),
    "fedpa": Method(
        "updates of local Gaussian posteriors, estimated from SGD iterates",
        "update = -Sigma_i^-1 (x - mean_i),   Sigma_i = r I + (1 - r) S_i,   r = 1 / (1 + (l - 1)"
        " rho)",
        "Al-Shedivat et al., Federated Learning via Posterior Averaging, ICLR 2021.",
        "Enough local steps for a few samples; begin with burn-in rounds of FedAvg.",
        "2d",
        "tau b, tau = burn_in + samples x window",
        builders.fedpa,
        unused=("steps", "epochs", "client_schedule"),
        options={
            "samples": (5, "l, windows of averaged iterates (our choice)"),
            "window": (2, "steps in a window (our choice)"),
            "burn_in": (0, "steps before the first window"),
            "shrinkage": (0.1, "rho (our choice)"),
            "burn_in_rounds": (0, "rounds of FedAvg first"),
        },
        parts=HEAT,
    ),
    "fedmid": Method(
        "federated mirror descent for a loss with a regulariser",
        "y <- prox_{eta psi}(y - eta g(y)),   x <- prox_{eta_s eta tau psi}(x + eta_s mean(y_i"
        " - x))",
        "Yuan et al., Federated Composite Optimization, ICML 2021.",
        "Constraints and sparsity; averaging undoes some zeros (feddualavg does not). Clients and"
        " server both shrink, so at rest the strength counts twice (once with server_only). Idle"
        " rows are not shrunk (lazy).",
        "2d",
        "tau b",
        builders.composite(recipes.fedmid),
        unused=(*_CLIENT, "client_schedule", "server", "server_schedule"),
        options={
            "regulariser": ("l1", "l1, group or box"),
            "strength": (0.001, "of psi; half width of the box (our choice)"),
            "server_only": (False, "leave the prox to the server: FedMiD-OSP"),
        },
        parts=HEAT,
    ),
    "feddualavg": Method(
        "federated dual averaging for a loss with a regulariser",
        "y = prox_{t psi}(z),   z <- z - eta g(y),   t <- t + eta;   z <- z + eta_s mean(z_i - z), "
        "  model prox_{t psi}(z)",
        "Yuan et al., Federated Composite Optimization, ICML 2021.",
        "Sparse models: zeros survive averaging, for idle rows too. With heat the regulariser"
        " counts n_m / N as much on a row.",
        "2d",
        "tau b",
        builders.composite(recipes.feddualavg),
        unused=(*_CLIENT, "client_schedule", "server", "server_schedule"),
        options={
            "regulariser": ("l1", "l1, group or box"),
            "strength": (0.001, "of psi; half width of the box (our choice)"),
        },
        parts=HEAT,
    ),
    "qffl": Method(
        "clients with a higher loss count more",
        "Delta_i = F_i^q L (x - y_i),   h_i = q F_i^(q-1) ||L (x - y_i)||^2 + L F_i^q,   x <- x -"
        " sum Delta_i / sum h_i",
        "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020.",
        "A more even quality over clients; q = 0 is FedAvg with uniform weights. L = 1 / client"
        " rate. F_i is the loss of the client's first batch, a choice that costs no extra pass: the"
        " paper's is that of all its examples, and a power of an estimate is not unbiased.",
        "2d",
        "tau b",
        builders.qffl,
        limits="robust reductions (its denominator is a sum of its own)",
        options={"q": (1.0, "power of the loss (our choice)")},
        parts=HEAT,
        unused=(*_CLIENT, "client_schedule", *_SERVER, "weights", "reduce"),
    ),
    "afl": Method(
        "weights that ascend on the worst mixture of clients",
        "x <- x + sum_i lambda_i delta_i / sum_i lambda_i,   then lambda_i <- lambda_i exp(rate"
        " (F_i - last round's mean F))\n(a constant in place of F's mean changes no normalised"
        " lambda; 0 in the first round)",
        "Mohri et al., Agnostic Federated Learning, ICML 2019 (mirror ascent, over the clients that"
        " take part).",
        "A guarantee for the worst group of few clients.",
        "2d",
        "tau b",
        builders.afl,
        memory="one number",
        limits="heat correction (the weights change as it goes)",
        options={"weight_rate": (0.1, "of the ascent (our choice)")},
        unused=("weights",),
    ),
    "superquantile": Method(
        "the worst share of the cohort only",
        "x <- x + mean of delta_i over the clients whose loss is among the worst share",
        "Laguel et al., A Superquantile Approach to Federated Learning with Heterogeneous Devices,"
        " CISS 2021.",
        "A better tail of the clients' losses (of their first batches).",
        "2d",
        "tau b",
        builders.superquantile,
        limits="other reductions",
        options={"share": (0.5, "of the cohort that counts (our choice)")},
        parts=HEAT,
        unused=("reduce",),
    ),
    "ifca": Method(
        "each client trains the best of k models",
        "j = argmin_j F_i(x_j);   x_j <- x_j + mean of delta_i over the clients that chose j",
        "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020; "
        "Mansour et al., Three Approaches for Personalization, 2020 (HypCluster).",
        "Groups of clients with different tasks. fedslice.evaluation.clusters tells who is where;"
        " run and compare score every client with the model that suits its training data.",
        "(k + 1) d",
        "tau b, and k losses of |D_i|",
        builders.ifca,
        limits=(
            "heat correction, compression, robust reductions but worst (a client updates one of the"
            " models only)"
        ),
        unused=(*_SERVER, "client_schedule"),
        options={
            "models": (2, "k (our choice)"),
            "spread": (0.1, "size of the noise that makes them differ at first"),
        },
    ),
    "fedrecon": Method(
        "local leaves rebuilt on the device each round, global ones trained with them; nothing is"
        " kept",
        "R: l <- l - eta_r grad_l F(g, l; support), k_r times from a fresh l, g frozen\nU: g <- g -"
        " eta grad_g F(g, l; query), k_u times, l frozen;   delta_i = change of g,  w_i = |query|",
        "Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS"
        " 2021.",
        "Models with local leaves (a user's vector, embeddings of private words) and so many"
        " clients that none comes twice. First-order meta-learning: with k_u = 1 the update is"
        " minus the rate times the query gradient at the rebuilt l. run and compare judge it by"
        " ReconEval: an unseen client rebuilds l on its support examples and is scored on its query"
        " examples. `steps` and `reconstruct_steps` are here the most batches of one pass, and of a"
        " few, as in the paper.",
        "2 |g|, g without the local leaves",
        "(k_r + k_u) b",
        builders.fedrecon,
        options={
            "split": (
                "half",
                (
                    "support and query: half (random, fixed), fresh (random in each round), time or"
                    " time:COLUMN (earlier, later), none (all for both)"
                ),
            ),
            "reconstruct_steps": (50, "k_r at most (the paper's MovieLens setting)"),
            "reconstruct_epochs": (5, "passes over support at most (the authors' code)"),
            "reconstruct_rate": (0.1, "eta_r (the authors' setting)"),
            "joint": (False, "U trains l too"),
        },
        parts=HEAT,
    ),
    "maml": Method(
        "a model that one gradient step makes a client's own (Per-FedAvg)",
        "w' = w - alpha grad f(w; s),   w <- w - eta grad f(w'; q),   support batch s, query batch"
        " q\nfull: (I - alpha H) grad f(w'; q), H the Hessian of f(w; s);   delta_i = change of w",
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A"
        " Model-Agnostic Meta-Learning Approach, NeurIPS 2020; Finn et al., ICML 2017.",
        "Clients, new ones too, that will adapt by a step or a few before they use the model; run"
        " and compare judge it after adapting. Its global model alone is not meant to be good. Full"
        " MAML needs a loss that is twice differentiable.",
        "2d (first order: of tables, up the query rows only)",
        "2 tau b (full: and as many Hessian products)",
        builders.maml,
        options={
            "inner_rate": (0.1, "alpha (our choice)"),
            "first_order": (True, "leave the Hessian out (FOMAML)"),
            "split": (
                "half",
                "support and query, as for fedrecon; the paper draws both from all: none",
            ),
        },
        parts=HEAT,
        defaults={"weights": "uniform"},
    ),
    "reptile": Method(
        "FedAvg with uniform weights and a server rate, fine-tuned by each client",
        "delta_i = (tau local steps from x) - x\nx <- x + epsilon mean_i delta_i,   epsilon ="
        " server_rate",
        "Nichol et al., On First-Order Meta-Learning Algorithms, 2018.",
        "As maml, without pairs of batches; with one local step it is joint training. run and"
        " compare judge it after fine-tuning by the same local work.",
        "2d",
        "tau b",
        builders.reptile,
        parts=HEAT,
        fixed=UNIFORM,
        unused=("server", "server_schedule"),
    ),
    "ditto": Method(
        "FedAvg, and on each client a model of its own that is pulled to the global one",
        "w as in FedAvg\nv_i <- v_i - eta_p (grad F_i(v_i) + lambda (v_i - w_t)),   kept by"
        " client i",
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.",
        "Clients that come again and differ. lambda 0 is training alone, a large one the global"
        " model (eta_p lambda must stay below 2). v_i starts as the first global model and has only"
        " the client's own rows, all of which are pulled, so that it works on all of S(i). run and"
        " compare judge the clients' own models where the test set has the clients of the"
        " training.",
        "2d",
        "2 tau b",
        builders.ditto,
        memory="v_i, one model of the client's slice",
        options={
            "pull": (1.0, "lambda (one of the values the paper chooses from)"),
            "personal_rate": (0.0, "eta_p (0: the client rate)"),
        },
        parts=HEAT,
    ),
    "fedper": Method(
        "global leaves averaged, local ones kept by each client between its rounds",
        "(g, l_i) <- (g, l_i) - eta grad F_i(g, l_i), tau times;   delta_i = change of g,  l_i is"
        " kept",
        "Arivazhagan et al., Federated Learning with Personalization Layers, 2019.",
        "Few, stable clients and a model with local leaves, such as movielens-mf; where hardly any"
        " client comes twice use fedrecon.",
        "2 |g|",
        "tau b",
        builders.fedper,
        memory="the local leaves l_i",
        limits="models without local leaves",
        parts=HEAT,
    ),
}


def find_method(name: str) -> Method:
    """The algorithm of this name."""
    if name not in ALGORITHMS:
        raise InputError(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def settings_for(
    task: Task, algorithm: str, changes: Sequence[str], several: bool = False
) -> Settings:
    """What this algorithm runs with: the task's published settings with the user's changes,
    ``key=value`` or ``ALGORITHM:key=value``.  Nothing is in it that the algorithm does not use.

    With ``several``, when algorithms are compared, changes that are not its own or shared are
    passed over."""
    method = find_method(algorithm)
    own = {
        key: default for key, (default, _) in {**COMMON, **method.options, **method.parts}.items()
    }
    published = {
        key: value for key, value in task.settings.items() if key in own
    }  # some are of one algorithm
    rate = task.learning_rates.get(algorithm, task.learning_rates.get("", 0.1))
    values = own | {
        "client_rate": rate,
        **({"epochs": 0} if "steps" in task.settings else {}),
        **published,
    }
    if algorithm == "fedsgd":
        values["server_rate"] = rate
    alone = task.algorithms.get(algorithm, {})
    values |= {**method.defaults, **{key: value for key, value in alone.items() if key in own}}
    values |= {key: made(task) if callable(made) else made for key, made in method.fixed.items()}
    settings = Settings({key: value for key, value in values.items() if key not in method.unused})
    settings = _changed(
        algorithm, settings, [c for c in changes if not _constant(c)], several
    ).with_constants()
    tuned = {
        key: value for key, value in alone.items() if key not in own and key in settings.values
    }
    settings = Settings({**settings.values, **tuned}, settings.said)
    return _changed(
        algorithm, settings, [c for c in changes if _constant(c)], several
    ).with_weights()


def _constant(change: str) -> bool:
    """Whether it is one of an optimizer's: those come after the choice of the optimizer, in
    whatever order they are given."""
    side, _, name = change_of(change)[1].partition("_")
    return side in ("client", "server") and name in CONSTANTS


def _changed(algorithm: str, settings: Settings, changes: Sequence[str], several: bool) -> Settings:
    method = find_method(algorithm)
    for change in sorted(
        changes, key=lambda each: bool(change_of(each)[0])
    ):  # what names the algorithm has the last word
        named, key, value = change_of(change)
        if several and not _takes(algorithm, settings, named, key):
            continue
        if named not in ("", algorithm):
            raise InputError(f"--set {change} is for {named}, not for {algorithm}")
        if key in method.fixed:
            raise InputError(
                f"--set {change}: {algorithm} has {key}={settings.values[key]} by its definition"
            )
        if key in method.unused:
            raise InputError(f"--set {change}: {algorithm} does not use {key}")
        settings = settings.change(key, value)
    return settings


def _takes(algorithm: str, settings: Settings, named: str, key: str) -> bool:
    """Whether a change is for this algorithm: it is named, or has the setting as its own or a
    shared one."""
    method = find_method(algorithm)
    return named == algorithm or (
        not named and key in settings.values and key not in {**method.parts, **method.fixed}
    )


def settings_of_all(
    task: Task, algorithms: Sequence[str], changes: Sequence[str]
) -> tuple[dict[str, Settings], list[str]]:
    """What each of several algorithms runs with, and notes on changes that are not for all of them.

    A change that none of them takes is refused.
    """
    found = {name: settings_for(task, name, changes, several=True) for name in algorithms}
    notes = []
    for change in changes:
        named, key, value = change_of(change)
        users = [name for name, settings in found.items() if _takes(name, settings, named, key)]
        if not users:
            raise InputError(f"--set {change}: {_nobody(named, key, value, found)}")
        if not named and len(users) < len(found):
            notes.append(f"note: {key}={value} is for {', '.join(users)} only")
    return found, notes


def _nobody(named: str, key: str, value: str, found: Mapping[str, Settings]) -> str:
    """Why no algorithm takes a change."""
    if named:
        find_method(named)
        return f"{named} is not among those compared, {', '.join(found)}"
    parts = [name for name in found if key in find_method(name).parts]
    if parts:
        return (
            f"this makes {parts[0]} another method, so say for which: --set"
            f" {parts[0]}:{key}={value}"
        )
    idle = [name for name in found if key in (*find_method(name).unused, *find_method(name).fixed)]
    if idle:
        return f"{', '.join(idle)}: not used, or fixed by the definition"
    return (
        f"none of {', '.join(found)} has it;"
        f" {nearest(key, dict.fromkeys(k for s in found.values() for k in s.values))}"
    )


def page() -> str:
    """All algorithms in Markdown: docs/algorithms.md."""
    usual = {key: f" = {default}" for key, (default, _) in COMMON.items()}
    common = [f"- `{key}`{usual.get(key, '')}: {meaning}" for key, meaning in explained().items()]
    return (
        INTRODUCTION
        + "\n".join(common)
        + "\n\n"
        + "\n".join(m.text(name) for name, m in ALGORITHMS.items())
    )


INTRODUCTION = """# Algorithms

Written by `fedslice algorithms --markdown`; `fedslice algorithms NAME` shows one.

N clients; client i holds data D_i and the slice S(i) of the model: all dense leaves, and of each table the rows that its
data mention. A round draws a cohort of K clients. Weights w_i are |D_i| (`weights="examples"`) or 1 (`"uniform"`). With
uniform sampling, weights by examples follow the pooled objective, as a ratio of two random sums: right up to O(1/K), not
exactly. `sampling.weighted` (`sampler=weighted`) draws K clients with replacement in proportion to |D_i| and averages
uniformly, with heat by examples: exactly unbiased for the same. A client drawn twice trains and sends once and counts twice
in sums; in a vote (median, Krum) it has one voice. d is the number of numbers in a client's slice, tau local steps of batch b.

All are recipes made of public parts; in Python `recipes.NAME(...)`, in a shell `--algorithm NAME`. Everything combines with
submodels and, but where said, with heat, clipping, compression, robust reductions and optax optimizers:

    fs.recipes.fedsubavg(model, optax.sgd(0.1), heat=heat, steps=10, batch=5, server=optax.yogi(0.01),
                         corrections=[fs.client.proximal(0.01)],
                         stages=[fs.stage.compress(fs.stage.quantise(127))], reduce=fs.reduce.trimmed(0.1))

    fedslice run movielens-lr --synthetic --algorithm fedsubavg --set server=yogi --set server_rate=0.01 \\
        --set mu=0.01 --set compress=quantise:127 --set reduce=trimmed:0.1

`steps` draws every mini-batch independently from the client's examples (xi ~ D_i); `epochs` makes shuffled passes. A
client's batches are a hash of (seed, round, client). Reports count what a round sends: down the offer with all rows of
S(i); up the message with the rows that trained, 4 bytes for each row's number, and the bytes that compression leaves. A
client that takes part for the first time also sends S(i), 4 bytes a row, once (Ding et al. 2022, algorithm 1, line 5).

**Robust reductions** (`reduce=`): a row is reduced over the clients of the cohort that hold it. `trimmed`, `median`
(Yin et al. 2018), `geometric` (RFA, Pillutla et al. 2022), `krum` (Blanchard et al. 2017; two clients are compared on what
both hold), `worst` (superquantile). `clip` bounds the norm of each client's update (not of the gradients of a survey). A vote protects a
row only where enough clients of the cohort hold it, and of a cold row a cohort has one or two holders. `trimmed` and `median` therefore
bound the holders of a row that fewer than `quorum` (10; 0 for never) clients hold to the norm of the cohort's median client. `benchmarks/robust.py`
draws what a fifth of bad clients does to a small MovieLens LR:

![Test loss under attack, by reduction](images/robust.png)

Test loss after 40 rounds (0.693 before the first) under sign-flipped (times 10) and colluding clients, of 302 in all:

| clients a round | mean | trimmed(0.4) | median | geometric | multi-Krum | clip | clip + median |
|---|---|---|---|---|---|---|---|
| 30 | diverged, .909 | .680, .681 | .680, .681 | .689, .686 | .671, .671 | .678, .675 | .679, .679 |
| 50 (the picture) | diverged, .847 | .675, .676 | .674, .675 | .682, .674 | .669, .669 | .679, .675 | .675, .673 |
| 100 | diverged, .874 | .678, .680 | .678, .677 | .680, .674 | .670, .671 | .680, .677 | .677, .676 |

With `quorum` 0 both votes fail at 50 (.708, .709 under collusion) and below. That updates times 100 *lower* the loss of some is no merit:
they point the right way and act on cold rows as heat correction does.

**Compression** (`compress=`): `quantise` (QSGD, Alistarh et al. 2017), `largest` (top-k), `random` (random-k), `sign`,
`low_rank` (PowerSGD, Vogels et al. 2019, dense matrices), with `feedback` (Karimireddy et al. 2019).

Settings that all share:

"""
