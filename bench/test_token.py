"""Benchmark of the verification of tokens."""

import time

from pytest_benchmark.fixture import BenchmarkFixture

from proxy.server.callers.rulebook import Caller, Rulebook
from proxy.server.callers.token_keeper import TokenKeeper, TokenSettings


def keeper_and_token() -> tuple[TokenKeeper, Rulebook, bytes]:
    keeper = TokenKeeper(TokenSettings("graphward", "graphward", 3600), [b"k" * 32])
    caller = Caller("app", "org", "client", secret_version=1)
    book = Rulebook({"client": caller}, loaded=True)
    keeper.use(book)
    return keeper, book, b"Bearer " + keeper.issue(caller, now=time.time(), token_id="t").encode()


def test_known_token(benchmark: BenchmarkFixture) -> None:
    keeper, _, token = keeper_and_token()
    assert benchmark(keeper.caller, token, time.time()).client_id == "client"


def test_new_token(benchmark: BenchmarkFixture) -> None:
    keeper, book, token = keeper_and_token()
    now = time.time()

    def check() -> Caller:
        keeper.use(book)  # Clears the cache of checked tokens.
        return keeper.caller(token, now)

    assert benchmark(check).client_id == "client"
