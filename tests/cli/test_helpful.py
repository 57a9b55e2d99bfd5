"""Help at 80 columns with examples that parse; names that were perhaps meant, before any data."""

import shlex

import pytest

from fedslice.cli import wanted
from fedslice.cli.help_examples import EXAMPLES
from fedslice.cli.helpful import walk
from fedslice.cli.main import main
from fedslice.cli.parser import parser

PATHS = [path for path, _ in walk(parser())]


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(EXAMPLES) <= set(PATHS)
    assert {path for path in PATHS if not EXAMPLES.get(path)} == set()


def test_help_fits_80_columns_and_its_examples_parse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path, each in walk(parser()):
        with pytest.raises(SystemExit) as end:
            main([*path.split(), "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80, path
        assert "examples:" in text
        for command, _ in EXAMPLES.get(path, []):
            if command.startswith("fedslice ") and "|" not in command:
                parser().parse_args(shlex.split(command)[1:])
                assert " ".join(command.split()) in " ".join(text.replace("\\\n", "").split())
        for action in each.actions:  # what has a default says which
            known = action.default not in (None, "==SUPPRESS==", False, 0, [], "")
            assert not known or "default" in (action.help or ""), f"{path} {action.dest}"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rnu movielens-lr", "there is no command 'rnu'; did you mean 'run'?"),
        ("deploy locl", "there is no command 'locl'; did you mean 'local'?"),
        ("run movielens-lr --algoritm=a", "no option --algoritm; did you mean '--algorithm'?"),
        ("privacy --sampler poison", "did you mean 'poisson'?"),
        ("reproduce fedsubav", "did you mean 'fedsubavg'?"),
        ("demo here", "here: this command does not take so much"),
    ],
)
def test_words_that_there_are_not(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert meant in said
    assert said.splitlines()[-1].startswith("try: fedslice ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run movielns-lr", "did you mean 'movielens-lr'?"),
        ("tasks quadratc", "did you mean 'quadratic'?"),
        ("algorithms FedSubAvg", "did you mean 'fedsubavg'?"),
        ("run movielens-lr --algorithm fed_sub_avg", "did you mean 'fedsubavg'?"),
        ("run movielens-lr --set chort=3", "did you mean 'cohort'?"),
        ("run movielens-lr --set server=adm", "no optimizer 'adm'; did you mean 'adam'?"),
        ("run movielens-lr --set sampler=unifrm", "did you mean 'uniform'?"),
        ("run movielens-lr --set reduce=medain", "did you mean 'median'?"),
        ("run movielens-lr --set compress=quantize:3", "did you mean 'quantise'?"),
        ("run movielens-lr --set client_schedule=cosin:3", "did you mean 'cosine'?"),
        ("run movielens-lr --set available=sometime:0.3", "did you mean 'sometimes'?"),
        ("run movielens-lr --set heat_privacy=respons", "did you mean 'response'?"),
        ("run movielens-lr --set secure=yess", "did you mean 'yes'?"),
        ("run movielens-lr --set clip=1 --set noise=1 --set noise_by=serve", "mean 'server'?"),
        ("run movielens-lr --set weights=exmples", "did you mean 'examples'?"),
        ("run movielens-lr --set engine=vmp", "did you mean 'vmap'?"),
        ("run movielens-lr --track wandbb", "did you mean 'wandb'?"),
        ("run movielens-mf --option splt=time", "did you mean 'split'?"),
        ("run movielens-lr --rounds 0", "--rounds and --eval-every must be at least 1"),
        ("run movielens-lr --patience 3", "hold out a validation set"),
        ("run movielens-lr --validation 2", "give a share from 0 to 1"),
        ("run movielens-lr --set batch=many", "this must be a whole number"),
        ("compare movielens-lr fedavg fedsubavgg", "did you mean 'fedsubavg'?"),
        ("compare movielens-lr fedavg --set sever=adam", "did you mean 'server'?"),
        ("study movielens-lr fedavg --grid server=adam,yogy", "did you mean 'yogi'?"),
    ],
)
def test_settings_are_checked_before_data_are_loaded(
    words: str,
    meant: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(*given: object, **more: object) -> None:
        raise AssertionError("data are being loaded")

    monkeypatch.setattr(wanted, "make_task", never)
    monkeypatch.setattr(wanted, "obtain", never)
    assert main(words.split()) == 2
    assert meant in capsys.readouterr().err
