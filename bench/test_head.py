"""Benchmarks of the parsing of request heads and response heads."""

from itertools import cycle

from pytest_benchmark.fixture import BenchmarkFixture

from bench.samples import REQUEST, RESPONSE_HEAD
from proxy.server.http1.request_head import parse_request_head
from proxy.server.http1.response_head import parse_response_head


def test_request_head_of_known_lines(benchmark: BenchmarkFixture) -> None:
    assert benchmark(parse_request_head, REQUEST).method == "GET"


def test_request_head_with_one_new_line(benchmark: BenchmarkFixture) -> None:
    heads = cycle([REQUEST.replace(b"SdkVersion: g", b"SdkVersion: %d" % number) for number in range(9000)])
    assert benchmark(lambda: parse_request_head(next(heads))).method == "GET"


def test_response_head(benchmark: BenchmarkFixture) -> None:
    head = RESPONSE_HEAD % 1000
    assert benchmark(parse_response_head, head, to_head_request=False).status == 200
