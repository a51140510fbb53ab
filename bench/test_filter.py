"""Benchmarks of response filters and of the rewriting of links."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.samples import ONE_USER, USERS
from proxy.policy.filters import compile_filter
from proxy.policy.transforms import Transforms
from proxy.server.content.links import LinkRewriter

STRIP = Transforms(strip=("mobilePhone", "businessPhones", "otherMails"))
ALLOW = Transforms(allow=("id", "displayName", "mail", "jobTitle"))


@pytest.mark.parametrize("transforms", [STRIP, ALLOW], ids=["strip", "allow"])
@pytest.mark.parametrize("body", [ONE_USER, USERS], ids=["object", "list"])
def test_filter(benchmark: BenchmarkFixture, transforms: Transforms, body: bytes) -> None:
    compiled = compile_filter(transforms)
    assert b"otherMails" not in benchmark(compiled.apply, body).body


@pytest.mark.parametrize("body", [ONE_USER, USERS], ids=["object", "list"])
def test_links_where_none_changes(benchmark: BenchmarkFixture, body: bytes) -> None:
    rewriter = LinkRewriter(b"https://graph.microsoft.com", b"https://proxy.example")
    assert benchmark(rewriter.rewrite, body) is None


def test_the_link_of_a_page(benchmark: BenchmarkFixture) -> None:
    rewriter = LinkRewriter(b"https://graph.microsoft.com", b"https://proxy.example")
    next_page = b'"@odata.nextLink":"https://graph.microsoft.com/v1.0/users?$skiptoken=a",'
    page = USERS.replace(b'"value":', next_page + b'"value":', 1)
    assert b"https://proxy.example/v1.0/users?" in benchmark(rewriter.rewrite, page)


def test_links_of_a_stream_where_none_changes(benchmark: BenchmarkFixture) -> None:
    stream = LinkRewriter(b"https://graph.microsoft.com", b"https://proxy.example").stream()
    chunk = USERS[:65536]
    assert benchmark(stream.feed, chunk) == chunk
