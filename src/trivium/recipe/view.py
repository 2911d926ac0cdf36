"""`trivium view`: runs and their episodes as web pages, served on this machine alone or written to a file."""

from __future__ import annotations

import io
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import tyro
from rich.console import Console

from trivium.errors import InputError, TriviumError
from trivium.loops.cycles import Cycles
from trivium.loops.run import write_text
from trivium.recipe.show import Book
from trivium.trace import Episode
from trivium.viewer import screen
from trivium.viewer.page import Index, Listing, Query, Sheet, beside_page, curves, cycles, episode_page, list_page, sheet

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Place = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
SHOWN = ("reward", "stop", "turns", "calls", "errors")
"""The columns of a list, before the numbers that an agent's table has."""
ROWS = 100
READING = 0.4
"""Seconds that one page may spend on reading episodes that came since."""
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def view(run: Place, port: int = 8700, episode: str = "", task: str = "", out: str = "") -> None:
    """Look at a run in a browser: its curves while it trains, its episodes token by token, policies side by side. The page is
    served on this machine alone (127.0.0.1), until Ctrl-C. With --out one page goes to a file that stands alone.

    Args:
        run: the run's folder, a folder of runs, or the file of a store (`Store("episodes.db")`)
        port: where the page is served; 0: any free port
        episode: with --out: the id of the episode to write
        task: with --out: the task whose episodes to write side by side, by the base, after the warm-up, after RL
        out: write one page to this file, and serve nothing
    """
    if out:
        _write(run, episode, task, Path(out))
        return
    if episode or task:
        raise InputError("--episode and --task say what goes to a file: name it with --out, or find them on the page")
    app = page_app(run)
    import uvicorn

    with _bound(port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        screen().print(f"{run}: {address}   (Ctrl-C ends it)", soft_wrap=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


def _write(run: str, episode: str, task: str, out: Path) -> None:
    if bool(episode) == bool(task):
        raise InputError("--out writes one page: name what it shows with --episode or with --task")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out} cannot be written: its folder does not exist")
    desk = Desk(Book.open(run))
    with desk.book:
        write_text(out, desk.beside(task) if task else desk.episode(episode))
    screen().print(f"{out} stands alone: a browser opens it without Trivium", soft_wrap=True)


def _bound(port: int) -> socket.socket:
    """A socket on the loopback address. InputError where the port is taken or none."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} cannot be had ({error}): choose another with --port, or 0 for any") from None


# --- one run's pages -------------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """A run or a store on a desk: each method is one page. Nothing is written."""

    book: Book
    _lock: Lock = field(default_factory=Lock)
    _reading: Thread | None = None

    @cached_property
    def index(self) -> Index:
        """The facts of the episodes; what is read for the first time is read beside the pages that show it."""
        return Index(self.book.store)

    def refresh(self) -> bool:
        """Read what came since, for a moment; the rest in the background. Whether all is read."""
        if self._reading and self._reading.is_alive():
            return False
        if not (whole := self._read(READING)):
            self._reading = Thread(target=self._read, args=(math.inf,), daemon=True)
            self._reading.start()
        return whole

    def _read(self, seconds: float) -> bool:
        with self._lock:
            return self.index.refresh(seconds)

    @property
    def growing(self) -> bool:
        """Whether it is a run that has not finished."""
        return self.book.run is not None and not self.book.finished

    def charts(self) -> str:
        """The curves of a run, and the turns of its live loop; a store that is no run has none."""
        if not self.book.run:
            return ""
        turns = [asdict(cycle) for cycle in Cycles(self.book.run.folder).all()]
        return curves(self.book.run.events(), self.book.agent.panels) + cycles(turns)

    def front(self, query: Query, first: int = 0) -> str:
        """The run's curves, and a hundred of its episodes from number `first` on."""
        return list_page(self.book.name, "./", (), self.charts(), self.table(), self.growing, self._listing(query, first))

    def table(self) -> str:
        """The table of a finished run, as a terminal shows it."""
        console = Console(file=io.StringIO(), width=160, record=True)
        self.book.print_table(console)
        return console.export_text()

    def _listing(self, query: Query, first: int) -> Listing:
        whole, problem = self.refresh(), ""
        try:
            hits = self.index.find(query)
        except InputError as error:
            hits, problem = [], str(error)
        names = self.index.names()
        wanted = dict.fromkeys((*SHOWN, *self.book.agent.panels.table))
        rows = [(entry, "episode?" + _words(query, id=entry.id)) for entry in hits[first : first + ROWS]]
        earlier = "?" + _words(query, first=str(max(0, first - ROWS))) if first > 0 else ""
        later = "?" + _words(query, first=str(first + ROWS)) if first + ROWS < len(hits) else ""
        shown = [name for name in wanted if name in names]
        stages = self.index.stages()
        return Listing(query, rows, len(hits), len(self.index), names, shown, stages, earlier, later, problem, not whole)

    def episode(self, id: str, query: Query = Query(), served: bool = False) -> str:
        """An episode; `served` with links to what stands around it. InputError where there is none of that id."""
        episode = self._episode(id)
        if not served:
            return episode_page(self._sheet(episode))
        self.refresh()
        try:
            near = self.index.neighbours(id, query)
        except InputError:  # an address with a query that is none: the episode can be shown all the same
            query, near = Query(), ("", "")
        before, after = ("episode?" + _words(query, id=each) if each else "" for each in near)
        task, home = episode.task.id, "./?" + _words(query)
        beside = "beside?" + urlencode({"task": task}) if any(self.book.store.select("eval/", task, limit=1)) else ""
        file = "episode?" + urlencode({"id": id, "file": "1"})
        return episode_page(self._sheet(episode), home, before, after, beside, file)

    def beside(self, task: str, home: str = "#") -> str:
        """One episode of a task by each policy of a run, side by side. InputError where the task has none."""
        columns = self.book.of_task(task)
        return beside_page(task, [(title, self._sheet(each)) for title, (each, _) in columns], home)

    def _episode(self, id: str) -> Episode:
        found = next((each for each in self.book.store.select(prefix=id, limit=1) if each.id == id), None)
        if found is None:
            raise InputError(f"{self.book.name} has no episode {id!r}")
        return found

    def _sheet(self, episode: Episode) -> Sheet:
        scores = self.book.store.first_scores(episode.id)
        return sheet(episode, scores, self.book.decode, self.book.agent.labels, self._advantage(episode))

    def _advantage(self, episode: Episode) -> float | None:
        """What the run's algorithm made of its reward beside those of its group; None outside of RL."""
        if not (self.book.recipe and episode.id.startswith("rl/")):
            return None
        from trivium.train.batch import Batch, Group, lessons  # brings torch

        stage = episode.id.partition(episode.task.id)[0]
        fellows = [each for each in self.book.store.select(stage, episode.task.id) if each.parent == episode.parent]
        rewards = {each.id: self.book.store.own_scores(each.id).get("reward") for each in fellows}
        scored = [each for each in fellows if rewards[each.id] is not None]
        try:
            group = Group(episode.task.id, scored, [rewards[each.id] or 0.0 for each in scored])
            learned, _ = lessons(Batch([group]), self.book.recipe.loss(), {episode.agent.policy})
        except TriviumError:
            return None
        return next((each.advantage for each in learned if each.episode == episode.id), None)


def _words(query: Query, **more: str) -> str:
    """A query, and what else an address says, as the words behind its question mark."""
    parts = {"prefix": query.prefix, "text": query.text, "where": " ".join(query.where), "order": query.order}
    return urlencode({name: value for name, value in {**parts, **more}.items() if value})


def _query(words: Mapping[str, str]) -> Query:
    return Query(words.get("prefix", ""), words.get("text", ""), tuple(words.get("where", "").split()), words.get("order", ""))


# --- as a web application --------------------------------------------------------------------------------------------


def page_app(place: str) -> Starlette:
    """The pages of a run, of a store, or of every run in a folder, as an ASGI application. InputError for a place that is none
    of them. A page of another host that has its name point to this machine is refused."""
    return _app(Shelf.at(Path(place)), ["127.0.0.1", "localhost", "testserver"])


def book_app(book: Book) -> Starlette:
    """The pages of one book, for a server that says itself who may read them."""
    return _app(Shelf(book.name, lambda: [book.name], lambda _: book, True), ["*"])


def _app(shelf: Shelf, hosts: Sequence[str]) -> Starlette:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Route

    routes = [Route("/", shelf.front), Route("/{name}", shelf.front)]
    pages = {"": shelf.run, "curves": shelf.curves, "episode": shelf.episode, "beside": shelf.beside}
    routes += [Route(f"/{{name}}/{page}", endpoint) for page, endpoint in pages.items()]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return Starlette(routes=routes, middleware=[trusted], exception_handlers={TriviumError: _refuse})


class Shelf:
    """Books by their names; each is opened when it is first asked for. `one`: there is one alone."""

    def __init__(self, title: str, names: Callable[[], list[str]], open: Callable[[str], Book], one: bool) -> None:
        self._title, self._names, self._open, self._one = title, names, open, one
        self._desks: dict[str, Desk] = {}

    @classmethod
    def at(cls, place: Path) -> Shelf:
        """A run, a store, or the runs of a folder. InputError for a place that is none of them."""
        if place.is_file() or (place / "recipe.json").is_file():
            name = place.absolute().name
            shelf = cls(str(place), lambda: [name], lambda _: Book.open(str(place)), True)
            if place.is_file():
                shelf._desk(name)  # which says now what is wrong with it
            return shelf
        shelf = cls(str(place), lambda: _runs(place), lambda name: Book.open(str(place / name)), False)
        if not shelf._names():
            raise InputError(f"{place} is no run, no store and no folder of runs (make one with `trivium train search`)")
        return shelf

    def _desk(self, name: str) -> Desk:
        if name not in self._names():
            raise InputError(f"{self._title} holds no run {name!r}")
        if name not in self._desks:
            self._desks[name] = Desk(self._open(name))
        return self._desks[name]

    def front(self, request: Request) -> Response:
        """The list of runs, or the way to the only one."""
        from starlette.responses import RedirectResponse

        root, name = request.scope.get("root_path", ""), request.path_params.get("name")
        if name or self._one:
            return RedirectResponse(f"{root}/{_folder(name or self._names()[0])}")
        return _page(list_page(self._title, "./", [(each, _folder(each), self._note(each)) for each in self._names()]))

    def _note(self, name: str) -> str:
        """How far a run is, or what is wrong with it: the others are listed all the same."""
        try:
            desk = self._desk(name)
            steps = [event.step for event in desk.book.run.events() if event.kind == "rl"] if desk.book.run else []
        except TriviumError as error:
            return str(error)
        return f"trains, or was stopped; RL step {max(steps, default=0)}" if desk.growing else "finished"

    def run(self, request: Request) -> Response:
        words = request.query_params
        first = words.get("first", "0")[:9]
        desk, query = self._desk(request.path_params["name"]), _query(words)
        return _page(desk.front(query, int(first) if first.isdecimal() else 0))

    def curves(self, request: Request) -> Response:
        desk = self._desk(request.path_params["name"])
        answer = _page(desk.charts())
        answer.headers["x-growing"] = "yes" if desk.growing else "no"
        return answer

    def episode(self, request: Request) -> Response:
        words, desk = request.query_params, self._desk(request.path_params["name"])
        id = words.get("id", "")
        if not words.get("file"):
            return _page(desk.episode(id, _query(words), served=True))
        answer = _page(desk.episode(id))
        name = "".join(c if c.isascii() and c.isalnum() else "-" for c in id)
        answer.headers["content-disposition"] = f'attachment; filename="{name}.html"'
        return answer

    def beside(self, request: Request) -> Response:
        return _page(self._desk(request.path_params["name"]).beside(request.query_params.get("task", ""), "./"))


def _folder(name: str) -> str:
    """The address of a run's pages below that of the list: # and ? in its name would end it."""
    return f"{quote(name, safe='')}/"


def _runs(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/recipe.json"))


def _page(html: str, status: int = 200) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(html, status, headers=HEADERS)


def _refuse(request: Request, error: Exception) -> Response:
    """A page that says what is wrong, in one sentence."""
    return _page(list_page("Not found", "./", listing=Listing(Query(), (), 0, 0, (), (), (), problem=str(error))), 404)
