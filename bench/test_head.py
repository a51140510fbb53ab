"""Reading heads."""

from pytest_benchmark.fixture import BenchmarkFixture

from bench.samples import ANSWER_HEAD, REQUEST
from proxy.server.framing import RequestParser, parse_answer_head


def test_request_head(benchmark: BenchmarkFixture) -> None:
    parser = RequestParser()
    assert benchmark(parser.parse, REQUEST).method == "GET"


def test_answer_head(benchmark: BenchmarkFixture) -> None:
    head = ANSWER_HEAD % 1000
    assert benchmark(parse_answer_head, head, to_head_request=False).status == 200
