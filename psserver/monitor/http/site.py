"""The paths of the live page: its files, the job as JSON and as a stream, metrics, and health. Read only."""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from psserver.monitor.http.requests import Request
from psserver.monitor.http.server import Response, is_loopback_host, sentence
from psserver.monitor.http.viewers import Sessions, TokenCheck, TooManyTokens
from psserver.monitor.sample_stream import SampleStream, Viewer
from pswire.errors import ConfigurationError, ParamServerError, PermissionDenied, Unauthenticated

#: The files of the page, and their types by the ending of the name.
PAGE = Path(__file__).parents[1] / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}

Metrics = Callable[[str], tuple[bytes, str]]


class Site:
    """Answers requests: `HttpServer` calls it, in several threads.

    Args:
        job: the JSON of `/api/job`.
        samples: the stream of `/api/stream`.
        tokens: the check of viewers; `/healthz` and `/readyz` need none.
        ready: why the server, or the job, is not ready; "" if it is.
        metrics: the text of `/metrics` and its type, for the header `Accept` of a request.
        port: by which the cookies of several monitors of a host differ.
        loopback: only names of the loopback interface are served, since a page of another site could otherwise have its
            own name lead here (DNS rebinding).
        secure: TLS is used, so cookies are sent by TLS only.
        certificates: viewers have to show a certificate.
    """

    def __init__(
        self,
        job: Callable[[], str],
        samples: SampleStream,
        tokens: TokenCheck,
        ready: Callable[[], str],
        metrics: Metrics | None = None,
        *,
        port: int = 0,
        loopback: bool = True,
        secure: bool = False,
        certificates: bool = False,
    ) -> None:
        self._job, self._samples, self._tokens, self._ready, self._metrics = job, samples, tokens, ready, metrics
        self._loopback, self._secure, self._certificates = loopback, secure, certificates
        self._sessions = Sessions(f"psserver-{port}")
        self._files = page_files()

    def __call__(self, request: Request) -> Response:
        """The answer to a request."""
        if self._loopback and not is_loopback_host(request.header("host")):
            text = "this server is for its own machine: use localhost or 127.0.0.1 in the address"
            return sentence(HTTPStatus.MISDIRECTED_REQUEST, text)
        match request.path:
            case "/healthz":
                return sentence(HTTPStatus.OK, "ok")
            case "/readyz":
                reason = self._ready()
                return sentence(HTTPStatus.SERVICE_UNAVAILABLE, reason) if reason else sentence(HTTPStatus.OK, "ready")
        return self._refusal(request) or self._answer(request)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a viewer who may not look."""
        if self._certificates and not request.certified:
            return sentence(HTTPStatus.FORBIDDEN, "a certificate is needed that the CA of this server has signed")
        token = self._token(request)
        try:
            self._tokens.check(token)
        except TooManyTokens as error:
            return sentence(HTTPStatus.TOO_MANY_REQUESTS, str(error), ("Retry-After", "5"))
        except Unauthenticated:
            text = "the token is none of this job's" if token else "a token of the job is needed"
            text += ": open /?token=TOKEN, or give it as the password, or as Authorization: Bearer TOKEN"
            challenge = 'Basic realm="paramserver: a token of the job is the password", charset="UTF-8"'
            return sentence(HTTPStatus.UNAUTHORIZED, text, ("WWW-Authenticate", challenge))
        except PermissionDenied as error:
            return sentence(HTTPStatus.FORBIDDEN, str(error))
        except ParamServerError as error:
            again = ("Retry-After", "2"), ("Refresh", "2")  # browsers know the latter
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, str(error), *again)
        return None

    def _token(self, request: Request) -> str:
        if request.path == "/" and "token" in request.query:
            return request.query["token"]
        return self._sessions.token_of(request)

    def _answer(self, request: Request) -> Response:
        match request.path:
            case "/" if "token" in request.query:
                return self._begin_session(request.query["token"])
            case "/api/job":
                return Response(HTTPStatus.OK, self._job().encode(), TYPES[".json"])
            case "/api/stream":
                return self._stream(request)
            case "/metrics":
                return self._metrics_text(request.header("accept"))
        if (file := self._files.get(request.path)) is not None:
            return file
        return sentence(HTTPStatus.NOT_FOUND, "there is nothing at this path: the page is at /")

    def _begin_session(self, token: str) -> Response:
        """Let the browser keep a session instead of the token, which would stay in its history."""
        secure = "; Secure" if self._secure else ""
        cookie = f"{self._sessions.cookie}={self._sessions.begin(token)}; Path=/; HttpOnly; SameSite=Strict{secure}"
        return Response(HTTPStatus.SEE_OTHER, headers=(("Location", "/"), ("Set-Cookie", cookie)))

    def _stream(self, request: Request) -> Response:
        last = request.header("last-event-id") or request.query.get("after", "")
        viewer = self._samples.follow(int(last) if last.isdecimal() and len(last) < 16 else None)
        if viewer is None:
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers: close some", ("Retry-After", "10"))
        checked = CheckedViewer(viewer, self._tokens, self._token(request))
        unbuffered = ("X-Accel-Buffering", "no")  # by proxies
        return Response(HTTPStatus.OK, kind="text/event-stream", headers=(unbuffered,), stream=checked)

    def _metrics_text(self, accept: str) -> Response:
        if self._metrics is None:
            return sentence(HTTPStatus.NOT_FOUND, "this process has no metrics: psserver serve --http has them")
        try:
            return Response(HTTPStatus.OK, *self._metrics(accept))
        except ConfigurationError as error:  # a package is missing
            return sentence(HTTPStatus.NOT_IMPLEMENTED, str(error))
        except ParamServerError as error:
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


class CheckedViewer:
    """A viewer whose stream ends when its token is no longer valid."""

    def __init__(self, viewer: Viewer, tokens: TokenCheck, token: str) -> None:
        self._viewer, self._tokens, self._token = viewer, tokens, token

    def __iter__(self) -> Iterator[bytes]:
        for part in self._viewer:
            try:
                self._tokens.check(self._token)
            except (ParamServerError, TooManyTokens):
                return
            yield part

    def close(self) -> None:
        """As `Viewer.close`."""
        self._viewer.close()


def page_files() -> dict[str, Response]:
    """The answers with the files of the page, by path: read once, so no request leads to any other file."""
    files = {
        f"/{quote(path.relative_to(PAGE).as_posix())}": Response(HTTPStatus.OK, path.read_bytes(), TYPES[path.suffix])
        for path in sorted(PAGE.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    return files | {"/": files["/index.html"]}
