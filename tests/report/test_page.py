"""The page: self-contained, whole, the same every time; and a real browser has nothing to say."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from kinds import few
from report.folders import by_heat, write

from fedslice.errors import InputError
from fedslice.report.content import content
from fedslice.report.page import page, write_parts
from fedslice.report.page import write as write_page
from fedslice.report.records import find
from fedslice.report.tables import Table

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "br", "path", "use", "rect", "line", "image"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("page")
    for seed in (0, 1):
        for algorithm, shift in (("fedavg", 0.0), ("fedsubavg", -0.1)):
            for rate in (0.1, 1.0):
                for server in (0.5, 1.0):
                    losses = [x + shift + 0.01 * seed - 0.02 * rate for x in (0.9, 0.8, 0.7)]
                    write(
                        tmp_path / "runs",
                        algorithm,
                        seed,
                        losses,
                        evaluation=by_heat([0.9 + shift, 0.7, 0.5]),
                        privacy={"epsilon": 3.25, "delta": 1e-5},
                        client_rate=rate,
                        server_rate=server,
                    )
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def report(runs):
    return content(find([runs]))


@pytest.fixture(scope="module")
def text(report):
    """The page, painted once."""
    return page(report)


class Balanced(HTMLParser):
    """Opens and closes, and names."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [v for k, v in attributes if k in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [v for k, v in attributes if k in ("href", "src", "xlink:href")]


def test_the_page_has_all_there_is_and_needs_nothing_else(report, text):
    for heading in ("Results", "Learning curves", "Tuning", "Cold and hot", "Client by client"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<svg") == len(report.pictures) >= 9
    names = [picture.name for picture in report.pictures]
    assert {"grid-fedavg", "by-heat", "heat", "curve-bytes", "rounds-to-target"} <= set(names)
    seen = Balanced()
    seen.feed(text)
    assert not seen.open
    assert len(set(seen.ids)) == len(seen.ids)
    # nothing from elsewhere: names on the page itself, and the empty icon
    assert all(link.startswith("#") or link == "data:," for link in seen.links)
    assert not re.search(r"url\((?!#)", text)
    inside = {f"#{name}" for name in seen.ids}
    assert {link for link in seen.links if link.startswith("#")} <= inside
    assert set(re.findall(r"url\((#[^)]*)\)", text)) <= inside


def test_what_it_says_is_what_the_runs_say(report):
    results, budgets = report.sections[0].tables
    assert results.head[:3] == ["algorithm", "settings chosen", "validation loss"]
    row = results.rows[1]
    assert row[:2] == ["fedsubavg", "client rate 1, server rate 0.5"]
    assert row[2] == "0.5850 ± 0.0071"  # 0.7 - 0.1 - 0.02, and 0.01 more with seed 1
    assert "validation loss 0.55" in results.head[3]
    assert (1, 2) in results.best
    assert (0, 2) not in results.best
    assert results.rows[-1][0] == "baseline"
    assert budgets.rows[0][0] == "fedavg"
    heat = next(table for table in report.tables if table.name == "by-heat")
    assert heat.head[1] == "cold (1–2 clients)"
    assert heat.rows[1][1] == "0.8000"
    tables = {table.name: table for table in report.tables}
    spread = tables["clients-loss"]
    assert spread.head[:4] == ["algorithm", "mean", "worst client", "10 %"]
    assert spread.head[-1] == "90 %"
    assert spread.rows[0][1:4] == ["0.5000", "0.9000", "0.1000"]
    by_size, by_land = tables["clients-loss-by-size"], tables["clients-loss-by-land"]
    assert by_size.head[1] == "small, 1 examples (2 clients)"
    assert by_size.rows[1][1:] == ["0.8000", "0.5000"]
    assert (1, 1) in by_size.best
    assert by_land.rows[1][1:] == ["0.2500", "0.8000"]
    private = next(table for table in report.tables if table.name == "privacy")
    assert private.rows[0] == ["fedavg", "3.25", "1e-05"]
    assert any("fedsubavg is best" in line for line in report.findings)


def test_the_same_runs_give_the_same_bytes(runs, text, tmp_path):
    again = write_page(content(find([runs])), tmp_path / "again.html").read_bytes()
    assert again == text.encode()


@pytest.mark.parametrize("kind", few(["png", "svg", "pdf"], "pdf"))  # svg is in the page
def test_the_same_runs_give_the_same_pictures(runs, tmp_path, kind):
    one, two = (
        {
            file.name: file.read_bytes()
            for file in write_parts(content(find([runs])), folder, [kind])
        }
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert one == two
    assert {"results.csv", "results.tex", "results.txt", f"by-heat.{kind}"} <= set(one)
    assert f"grid-fedavg.{kind}" in one
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF-"}[kind]
    assert one[f"heat.{kind}"].startswith(start)


def test_names_cannot_break_the_page(tmp_path):
    write(tmp_path, "<b>&fedavg", 0, [0.9, 0.8], task='<script>alert("x")</script>')
    text = page(content(find([tmp_path])))
    assert "<script>alert" not in text
    assert "<b>&" not in text


def test_a_table_is_itself_in_every_form():
    table = Table("t", "A & B", ["name", "x_1"], [["50 % of {a}", "1,5"]], best=frozenset({(0, 1)}))
    assert table.csv() == 'name,x_1\n50 % of {a},"1,5"\n'
    assert r"\textbf{1,5}" in table.latex()
    assert r"50 \% of \{a\}" in table.latex()
    assert "A &amp; B" in table.html()
    assert '<td class="best">1,5</td>' in table.html()


def test_a_page_has_the_name_of_a_page(runs, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.html"):
        write_page(content(find([runs])), tmp_path / "report.pdf")
    with pytest.raises(InputError, match="pictures as gif: there are png, svg, pdf"):
        write_parts(content(find([runs])), tmp_path, ["gif"])


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium here to open the page with")
@pytest.mark.parametrize("size", few(["1250,900", "390,800"], "1250,900"))
def test_a_browser_shows_it_without_complaint(runs, tmp_path, size):
    file = write_page(content(find([runs])), tmp_path / "report.html")
    shown = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}"),
            *("--enable-logging=stderr", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0
    assert "CONSOLE" not in shown.stderr
    assert shown.stdout.count("<svg") >= 9
    assert "Held-out loss by heat" in shown.stdout
