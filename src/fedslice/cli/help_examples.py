"""Examples for the help of each command, by the words that lead there."""

TRY = "fedslice run movielens-lr --synthetic"
EXAMPLES: dict[str, list[tuple[str, str]]] = {
    "": [
        ("fedslice demo", "see it work, in a minute"),
        ("fedslice run movielens-lr --synthetic", "train on generated data"),
        ("fedslice tasks", "what there is to train on"),
        ("fedslice algorithms fedsubavg", "all about one algorithm"),
    ],
    "demo": [("fedslice demo --out pictures", "tables and pictures in pictures/")],
    "run": [
        (TRY, "the task's algorithm, 200 rounds"),
        (f"{TRY} --algorithm fedadam --set server_rate=0.03", "another algorithm and setting"),
        (f"{TRY} --validation 0.1 --patience 5", "stop early, keep the best model in best/"),
        (f"{TRY} --rounds 1000 --out runs/long", "Ctrl-C saves; the same line goes on"),
        (
            "fedslice run lr --data clicks.csv --client user --label clicked --split time",
            "your own file; fedslice example writes this one",
        ),
    ],
    "compare": [
        (
            "fedslice compare movielens-lr fedavg fedsubavg central --synthetic --seeds 3",
            "three algorithms, three seeds, the same clients",
        ),
        (
            "fedslice compare movielens-lr fedavg fedprox --synthetic --set fedprox:mu=1",
            "a setting for one of them",
        ),
    ],
    "study": [
        (
            "fedslice study movielens-lr fedavg fedsubavg --synthetic"
            " --grid client_rate=0.1,0.3,1 --rounds 100",
            "tuned on validation, reported on test",
        ),
        ("fedslice study plan.toml --out runs/plan", "from a file"),
    ],
    "report": [("fedslice report runs/tuned -o report.html", "all runs below a folder")],
    "reproduce": [("fedslice reproduce fedsubavg --quick", "small and quick, on generated data")],
    "heat": [
        ("fedslice heat movielens-lr --synthetic --png heat.png", "with a picture"),
        (
            "fedslice heat clicks.parquet --client user --features item,category",
            "of your own file",
        ),
    ],
    "tasks": [
        ("fedslice tasks", "all of them"),
        ("fedslice tasks movielens-lr", "sizes, settings, published results"),
    ],
    "data": [("fedslice data movielens-lr", "into the data folder, or say where to get it")],
    "algorithms": [
        ("fedslice algorithms", "all of them"),
        ("fedslice algorithms scaffold", "equation, citation and settings"),
    ],
    "privacy": [
        (
            "fedslice privacy --clients 6040 --cohort 50 --noise 1 --rounds 200",
            "what noise 1 gives",
        ),
        (
            "fedslice privacy --clients 6040 --cohort 50 --epsilon 2 --rounds 200",
            "the noise for epsilon 2",
        ),
        (
            "fedslice privacy --clients 6040 --cohort 50 --epsilon 2 --noise 1",
            "the rounds for epsilon 2",
        ),
    ],
    "privacy attack": [("fedslice privacy attack --trials 1000", "quicker, and rougher")],
    "example": [("fedslice example try-it", "into a folder")],
    "recommend": [
        ("fedslice run movielens-mf --synthetic --rounds 100 --out runs/mf", "train first"),
        ("fedslice recommend --model runs/mf --user me.csv", "then ask"),
    ],
    "predict": [
        ("fedslice predict runs/clicks later.csv -o scores.csv", "a probability for each row")
    ],
    "evaluate": [("fedslice evaluate runs/clicks later.csv", "figures on a labelled file")],
    "export": [
        ("fedslice export runs/clicks clicks.onnx", "a graph that predicts, of own data"),
        ("fedslice export runs/clicks clicks.pt", "for PyTorch, with clicks.json"),
        ("fedslice export runs/clicks clicks.parquet", "a file a table, one of dense leaves"),
    ],
    "deploy": [("fedslice deploy local --nodes 4 --rounds 3", "a trial on this machine")],
    "deploy init": [("fedslice deploy init app --nodes 4", "a folder that flwr run starts")],
    "deploy local": [("fedslice deploy local app --tls", "encrypted, with registered keys")],
    "deploy data": [
        ("fedslice deploy data app mine.csv node-3 --number 3", "this node's own file")
    ],
    "deploy predict": [
        ("fedslice deploy predict app node-3 --out scores.csv", "with its own model")
    ],
    "deploy recommend": [("fedslice deploy recommend app node-3 --top 5", "five unseen items")],
    "completion": [
        ('eval "$(fedslice completion bash)"', "in ~/.bashrc"),
        ('eval "$(fedslice completion zsh)"', "in ~/.zshrc, after compinit"),
        ("fedslice completion fish | source", "in ~/.config/fish/config.fish"),
    ],
}
