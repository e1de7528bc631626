"""The console's pages as a web application: routes and handlers. `guard` is responsible for security.

A GET changes nothing. Handlers that read a store run in a thread, so that events go on meanwhile.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast, get_args
from urllib.parse import parse_qsl

import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from headgate import clock
from headgate.console.pages.health import CheckName, Checks, health_page
from headgate.console.pages.jobs import jobs_page
from headgate.console.pages.letters import letters_page
from headgate.console.pages.overview import overview
from headgate.console.pages.render import STATIC, page, static
from headgate.console.pages.rows import rows_page, search_page
from headgate.console.pages.runbook import page_of, runbook_page
from headgate.console.pages.shards import shard_page, shards_page
from headgate.console.pages.stream import stream_page
from headgate.console.watch.now import first_error
from headgate.console.watch.verdict import Verdict
from headgate.console.watch.watcher import WatchedTable, Watcher
from headgate.errors import HeadgateError, InvalidInput, NotFound

_log = structlog.get_logger("headgate.console")

EVENT_SECONDS = 1.0
"""Minimum time between two events for one page."""
PING_SECONDS = 15.0
MOST_LISTENERS = 64
MOST_BODY = 1_000
"""Maximum bytes of the only form."""
BODY_SECONDS = 10.0
MOST_READS = 4
"""Pages that read rows or checkpoints at the same time. Others wait, and leave threads for pages that show what is
known."""

Handler = Callable[[Request], Awaitable[Response]]


def application(watcher: Watcher) -> Starlette:
    """The console as a web application, to be served behind a Guard."""
    pages = _Pages(watcher)
    routes = [
        Route("/", pages.at(pages.overview)),
        Route("/events", pages.events),
        Route("/static/{name}", _static),
        Route("/t/{table}", pages.table),
        Route("/t/{table}/stream", pages.at(pages.stream)),
        Route("/t/{table}/shards", pages.at(pages.shards)),
        Route("/t/{table}/shards/{shard}", pages.at(pages.shard)),
        Route("/t/{table}/rows", pages.at(pages.rows, reads=True)),
        Route("/t/{table}/search", pages.at(pages.search, reads=True)),
        Route("/t/{table}/dead-letters", pages.at(pages.letters, reads=True)),
        Route("/t/{table}/jobs", pages.at(pages.jobs, reads=True)),
        Route("/t/{table}/health", pages.at(pages.health)),
        Route("/t/{table}/health", pages.check, methods=["POST"]),
        Route("/runbook/{name}", pages.at(pages.runbook)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            HeadgateError: _headgate_error,
            _Busy: _busy,
            _Unexpected: _unexpected,
        },
    )
    app.state.stopping = False
    app.state.listeners = 0
    return app


class _Pages:
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._checks = Checks(watcher)
        self._reads = CapacityLimiter(MOST_READS)

    def at(self, made: Callable[[Request], tuple[str, dict[str, Any]]], *, reads: bool = False) -> Handler:
        """A handler that renders a page in a thread; if it `reads`, with MOST_READS others at most."""

        async def answer(request: Request) -> Response:
            limiter = self._reads if reads and "x-live" not in request.headers else None
            try:
                return HTMLResponse(await run_sync(self._rendered, made, request, limiter=limiter))
            except (HeadgateError, HTTPException, _Busy):
                raise
            except Exception as error:
                # Texts of other errors may contain credentials, so the log gets the place alone.
                at = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
                _log.warning("a page of the console failed", error=type(error).__name__, at=where)
                raise _Unexpected(type(error).__name__) from None

        return answer

    def _rendered(self, made: Callable[[Request], tuple[str, dict[str, Any]]], request: Request) -> str:
        table = self._table(request) if "table" in request.path_params else None
        name, values = made(request)
        return page(name, **_frame(request, table), **values)

    def _table(self, request: Request) -> WatchedTable:
        found = self._watcher.table(request.path_params["table"])
        if found is None:
            raise NotFound("There is no such table here.", advice="go back to the overview")
        return found

    # -- pages ---------------------------------------------------------------------------

    def overview(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "overview", overview(self._watcher, _page(request))

    async def table(self, request: Request) -> Response:
        return RedirectResponse(f"/t/{self._table(request).key}/stream", 303)

    def stream(self, request: Request) -> tuple[str, dict[str, Any]]:
        live = "x-live" in request.headers
        asked = {} if live else dict(request.query_params)
        if asked.get("offset"):
            self._check_budget(live)
        return "stream", stream_page(self._table(request), request.query_params.get("stream"), _page(request), asked)

    def shards(self, request: Request) -> tuple[str, dict[str, Any]]:
        live = "x-live" in request.headers
        self._check_budget(live)
        return "shards", shards_page(self._table(request), _page(request), live=live)

    def shard(self, request: Request) -> tuple[str, dict[str, Any]]:
        self._check_budget(False)
        return "shard", shard_page(self._table(request), request.path_params["shard"])

    def rows(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "rows", rows_page(self._table(request), request.query_params)

    def search(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "search", search_page(self._table(request), request.query_params)

    def letters(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "letters", letters_page(self._table(request), request.query_params)

    def jobs(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "jobs", jobs_page(self._table(request), live="x-live" in request.headers)

    def health(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "health", health_page(self._checks, self._table(request))

    def runbook(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "runbook", runbook_page(request.path_params["name"])

    async def check(self, request: Request) -> Response:
        """Start a check. It only reads; the guard prevents other sites from starting one."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MOST_BODY:
                        raise HTTPException(413)
        except TimeoutError:
            raise HTTPException(408) from None
        name = dict(parse_qsl(body.decode("latin-1"))).get("check")
        if name not in get_args(CheckName):
            raise HTTPException(400)
        self._checks.start(self._table(request), cast(CheckName, name))
        return RedirectResponse(request.url.path, 303)

    def _check_budget(self, live: bool) -> None:
        """A page that a person opens may overdraw the budget, up to a limit. Raises _Busy beyond it."""
        wait = self._watcher.budget.seconds_to_wait()
        if wait > 0 and not live:
            raise _Busy(wait)

    # -- live updates ---------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Sends an event whenever something that pages show may have changed; the page then reloads its content."""
        state = request.app.state
        if state.listeners >= MOST_LISTENERS:
            return Response("Too many pages are open.\n", 503)

        async def news() -> AsyncIterator[str]:
            state.listeners += 1
            try:
                seen, quiet = -1, 0.0
                yield "retry: 2000\n\n"
                while not state.stopping and not await request.is_disconnected():
                    self._watcher.asked()
                    version = self._watcher.version
                    if version != seen:
                        seen, quiet = version, 0.0
                        yield f"event: changed\ndata: {version}\n\n"
                    elif quiet >= PING_SECONDS:
                        quiet = 0.0
                        yield ": still here\n\n"
                    await asyncio.sleep(EVENT_SECONDS)
                    quiet += EVENT_SECONDS
            finally:
                state.listeners -= 1

        return StreamingResponse(news(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


class _Busy(Exception):
    """The console has used up its budget of store requests."""

    def __init__(self, wait: float) -> None:
        super().__init__()
        self.wait = wait


class _Unexpected(Exception):
    """A page failed with an error that is not headgate's."""


def _frame(request: Request, table: WatchedTable | None) -> dict[str, Any]:
    """The values of the frame around every page."""
    values: dict[str, Any] = {"here": request.url.path, "table": None, "word": None, "tabs": ()}
    if table is not None:
        now = table.now
        verdict, _ = now.verdicts(clock.now(), clock.monotonic())
        root = f"/t/{table.key}"
        values |= {"table": now, "word": verdict, "root": root, "tabs": [(f"{root}/{at}", text) for at, text in TABS]}
    return values


TABS = (
    ("stream", "Stream"),
    ("shards", "Shards"),
    ("rows", "Rows"),
    ("search", "Search"),
    ("dead-letters", "Dead letters"),
    ("jobs", "Jobs"),
    ("health", "Health"),
)


def _page(request: Request) -> int:
    text = request.query_params.get("page", "1")
    return max(1, int(text)) if text.isdecimal() and len(text) < 8 else 1


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    return Response(static(name), media_type=STATIC[name], headers={"cache-control": "max-age=300"})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "There is no such page." if error.status_code == 404 else "That is not how this page is asked for."
    return _error(request, error.status_code, what, "go back to the overview")


async def _busy(request: Request, error: Exception) -> Response:
    assert isinstance(error, _Busy)
    what = "The console asks the stores for two objects a second, and has used up what it may ask for in advance."
    answer = _error(request, 503, what, f"this page can be read in {error.wait:.0f} s")
    answer.headers["retry-after"] = str(max(1, round(error.wait)))
    return answer


async def _unexpected(request: Request, error: Exception) -> Response:
    return _error(request, 500, f"The page failed with {error}.", "see the log of the process that shows the console")


async def _headgate_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadgateError)
    status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, InvalidInput) else 503
    return _error(request, status, first_error(error), error.advice or error.next_step)


def _error(request: Request, status: int, what: str, do: str) -> Response:
    verdict = Verdict("attention", (what,))
    values = {"here": request.url.path, "table": None, "word": None, "tabs": (), "verdict": verdict, "do": do}
    values["runbook"] = page_of(what)
    return HTMLResponse(page("error", **values), status)
