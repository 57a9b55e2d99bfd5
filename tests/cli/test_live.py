"""The foot of a terminal: what a person sees after every change, worked out by a small terminal."""

import io

from fedslice.cli.live import UP_AND_CLEAR, Live


class Terminal(io.StringIO):
    """A stream that is looked at; ``screen`` is what it shows."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        shown = [""]
        text = self.getvalue()
        while text:
            if text.startswith(UP_AND_CLEAR):
                shown = [*shown[:-2], ""]
                text = text.removeprefix(UP_AND_CLEAR)
            elif text[0] == "\n":
                shown.append("")
                text = text[1:]
            else:
                shown[-1] += text[0]
                text = text[1:]
        return shown[:-1]


def test_the_foot_stays_below_what_is_told() -> None:
    terminal = Terminal()
    live = Live(terminal)
    live.show(["running a", "best so far -"])
    live.tell("a has ended")
    live.show(["running b"])
    live.tell("b has ended")
    assert terminal.screen == ["a has ended", "b has ended", "running b"]
    live.show([])
    assert terminal.screen == ["a has ended", "b has ended"]


def test_a_long_line_takes_one_line() -> None:
    terminal = Terminal()
    Live(terminal).show(["x" * 1000])
    assert len(terminal.screen) == 1
    assert len(terminal.screen[0]) < 1000


def test_a_file_gets_what_is_told_alone() -> None:
    paper = io.StringIO()
    live = Live(paper)
    live.show(["running a"])
    live.tell("a has ended")
    assert paper.getvalue() == "a has ended\n"
