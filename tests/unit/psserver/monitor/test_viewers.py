"""Tokens of viewers: what is remembered about them, and how many unknown ones are asked about."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from psserver.monitor.http import viewers
from psserver.monitor.http.requests import Request
from psserver.monitor.http.viewers import (
    MAX_KNOWN,
    MAX_SESSIONS,
    STAY_SECONDS,
    VALID_SECONDS,
    Sessions,
    TokenCheck,
    TooManyTokens,
)
from pswire.errors import Unauthenticated, Unavailable
from pswire.security.token_files import new_token
from tests.support.commands import BOUND

TOKEN = "pst_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"  # the same in each process of the tests


class Servers:
    """Servers that know some tokens, and can be away; `asked` are the tokens that they were asked about."""

    def __init__(self, *known):
        self.known, self.asked, self.away, self.now = set(known), [], False, 100.0
        self.tokens = TokenCheck(self.check, lambda: self.now)

    def check(self, token):
        self.asked.append(token)
        if self.away:
            raise Unavailable("no server answers")
        if token not in self.known:
            raise Unauthenticated("not this one")

    def accepts(self, token):
        try:
            self.tokens.check(token)
        except Unauthenticated:
            return False
        return True


def test_the_servers_are_asked_about_a_token_again_after_some_seconds_and_refuse_it_when_it_was_removed():
    servers = Servers(TOKEN)
    assert [servers.accepts(TOKEN) for _ in range(3)] == [True, True, True]
    assert servers.asked == [TOKEN]
    servers.known.clear()
    servers.now += VALID_SECONDS - 0.1
    assert servers.accepts(TOKEN)
    servers.now += 0.2
    assert not servers.accepts(TOKEN)
    servers.known.add(TOKEN)
    servers.now += VALID_SECONDS
    assert servers.accepts(TOKEN)


def test_a_viewer_stays_while_no_server_answers_but_not_for_ever_and_a_new_one_is_not_let_in():
    servers = Servers(TOKEN, other := new_token())
    servers.tokens.check(TOKEN)
    servers.away = True
    servers.now += STAY_SECONDS - 1
    servers.tokens.check(TOKEN)
    with pytest.raises(Unavailable):
        servers.tokens.check(other)
    servers.now += VALID_SECONDS
    with pytest.raises(Unavailable):
        servers.tokens.check(TOKEN)


def test_who_was_refused_does_not_stay_when_the_servers_are_away():
    servers = Servers(TOKEN)
    servers.tokens.check(TOKEN)
    servers.known.clear()
    servers.now += VALID_SECONDS
    assert not servers.accepts(TOKEN)
    servers.away = True
    servers.now += VALID_SECONDS
    with pytest.raises(Unavailable):
        servers.tokens.check(TOKEN)


def test_wrong_tokens_are_asked_about_at_a_bounded_rate_and_known_viewers_are_not_held_up_by_them():
    servers = Servers(TOKEN)
    servers.tokens.check(TOKEN)
    refused = 0
    for _ in range(1000):
        try:
            servers.tokens.check(new_token())
        except TooManyTokens:
            refused += 1
        except Unauthenticated:
            pass
    assert len(servers.asked) == viewers.CHECKS_AT_ONCE
    assert refused == 1000 - (viewers.CHECKS_AT_ONCE - 1)
    servers.tokens.check(TOKEN)
    servers.now += 60.0
    servers.tokens.check(TOKEN)
    assert not servers.accepts(new_token())


class SlowServers(Servers):
    """Servers that answer about unknown tokens, and when `away` about all, not before `answers` is set."""

    def __init__(self, *known):
        super().__init__(*known)
        self.answers, self.waiting = threading.Event(), threading.Semaphore(0)

    def check(self, token):
        if self.away or token not in self.known:
            self.waiting.release()
            assert self.answers.wait(BOUND)
        super().check(token)


def test_who_was_let_in_does_not_wait_for_questions_about_unknown_tokens_and_these_have_a_bound():
    servers = SlowServers(TOKEN)
    servers.tokens.check(TOKEN)
    with ThreadPoolExecutor(viewers.MAX_OPEN + 1) as threads:
        try:
            unknown = [threads.submit(servers.accepts, new_token()) for _ in range(viewers.MAX_OPEN)]
            for _ in unknown:
                assert servers.waiting.acquire(timeout=BOUND)
            assert threads.submit(servers.accepts, TOKEN).result(BOUND)
            servers.now += VALID_SECONDS
            assert threads.submit(servers.accepts, TOKEN).result(BOUND), "also when it is asked about again"
            with pytest.raises(TooManyTokens):
                servers.tokens.check(new_token())
        finally:
            servers.answers.set()
        assert [one.result(BOUND) for one in unknown] == [False] * viewers.MAX_OPEN
        assert not servers.accepts(new_token()), "their places are free"


def test_one_request_of_a_viewer_asks_the_servers_while_its_others_go_on_with_the_last_answer():
    servers = SlowServers(TOKEN)
    servers.tokens.check(TOKEN)
    servers.away = True
    servers.now += VALID_SECONDS
    with ThreadPoolExecutor(2) as threads:
        try:
            asking = threads.submit(servers.tokens.check, TOKEN)
            assert servers.waiting.acquire(timeout=BOUND)
            threads.submit(servers.tokens.check, TOKEN).result(BOUND)
        finally:
            servers.answers.set()
        asking.result(BOUND)  # they are away: the viewer stays


def test_a_late_answer_does_not_replace_that_of_a_later_question():
    servers, asked, waiting, late = Servers(), [], threading.Event(), threading.Event()

    def check(token):
        asked.append(token)
        if len(asked) == 2:
            waiting.set()
            assert late.wait(BOUND)
        elif len(asked) == 3:
            raise Unauthenticated("removed meanwhile")

    tokens = TokenCheck(check, lambda: servers.now)
    tokens.check(TOKEN)
    servers.now += VALID_SECONDS
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(tokens.check, TOKEN)
        try:
            assert waiting.wait(BOUND)
            servers.now += VALID_SECONDS
            with pytest.raises(Unauthenticated):
                tokens.check(TOKEN)
        finally:
            late.set()
        with pytest.raises(Unauthenticated):
            early.result(BOUND)
    with pytest.raises(Unauthenticated):
        tokens.check(TOKEN)
    assert len(asked) == 3


def test_a_viewer_who_does_not_ask_for_a_while_is_not_forgotten_for_wrong_tokens():
    servers = Servers(TOKEN)
    servers.tokens.check(TOKEN)
    for _ in range(MAX_KNOWN + 50):
        servers.now += 1.0
        assert not servers.accepts(new_token())
    servers.tokens._checks = 0.0
    servers.tokens.check(TOKEN)


def test_what_is_remembered_of_tokens_has_a_bound():
    servers = Servers()
    for _ in range(MAX_KNOWN + 50):
        servers.now += 1.0
        assert not servers.accepts(new_token())
    assert len(servers.tokens._known) == MAX_KNOWN


@pytest.mark.parametrize(
    "token", ["short", "with space in the middle of it", "ünïcode-ünïcode-ünïcode", "x" * 201, "a\nb" * 20]
)
def test_a_text_that_is_no_token_is_refused_without_a_question(token):
    servers = Servers()
    assert not servers.accepts(token)
    assert servers.asked == []


def request(**headers):
    return Request("GET", "/", {}, {name.lower(): value for name, value in headers.items()})


def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (f"Bearer {TOKEN}", TOKEN),
        (f"bearer  {TOKEN} ", TOKEN),
        (basic(f"anyone:{TOKEN}"), TOKEN),
        (basic(f":{TOKEN}:x"), f"{TOKEN}:x"),
        (basic("no password"), ""),
        ("Basic ???", ""),
        ("Basic", ""),
        ("Digest x", ""),
        ("", ""),
    ],
)
def test_a_token_comes_as_bearer_or_as_the_password(header, token):
    assert Sessions("psserver-1").token_of(request(Authorization=header)) == token


def test_a_session_has_a_random_id_and_not_the_token_and_the_oldest_ends():
    sessions = Sessions("psserver-1")
    first = sessions.begin(TOKEN)
    assert TOKEN not in first
    assert len(first) > 40
    assert sessions.token_of(request(Cookie=f"other=1; psserver-1={first}")) == TOKEN
    assert sessions.token_of(request(Cookie=f"psserver-2={first}")) == ""
    assert sessions.token_of(request(Cookie=f"psserver-1={first[:-1]}")) == ""
    assert sessions.token_of(request(Cookie="psserver-1=\x00;;;=")) == ""
    for _ in range(MAX_SESSIONS):
        sessions.begin(TOKEN)
    assert sessions.token_of(request(Cookie=f"psserver-1={first}")) == ""
