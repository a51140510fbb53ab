"""Tests of the settings loader: values by type, overrides, secrets, and mistakes with their place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Address, SettingsError, describe, load_settings, reference, setting
from proxy.config.toml_lines import key_lines
from proxy.config.values import parse_address, parse_network, parse_origin, parse_url


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """A made-up section of settings, for the tests."""

    listen: tuple[Address, ...] = setting(default=("127.0.0.1:1",), address=True, doc="Where.")
    wait_seconds: float = setting(default=1.5, minimum=0.1, maximum=60, doc="How long.")
    max_size: int = setting(default=10, minimum=1, maximum=100, variable="MAX_SIZE", doc="How much.")
    open: bool = setting(default=True, doc="Whether.")
    when_full: Literal["refuse", "drop"] = setting(default="refuse", doc="What then.")
    cache_path: Path = setting(default="var/cache", path=True, doc="Kept there.")
    cert_file: Path | None = setting(default=None, readable=True, doc="Certificate.")
    tags: tuple[str, ...] = setting(default=(), doc="Words.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    base_url: str = setting(url=True, doc="Where to.")
    api_key: str = setting(secret=True, fallback_variable="PEER_KEY", doc="Key.")
    pin: str = setting(default="", secret=True, doc="Pin.")
    pin_file: Path = setting(default="pin", path=True, doc="Its file, made at first start.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    door: DoorSettings
    peer: PeerSettings

    def problems(self) -> list[tuple[str, str]]:
        return [("Door.MaxSize", "must be even")] if self.door.max_size % 2 else []


FILES = {"/etc/example/key.txt": "from-a-file\n", "/etc/example/cert.pem": "PEM", "/etc/example/empty": "\n"}
MINIMAL = '[Peer]\nBaseUrl = "https://peer.example/"\nApiKey = "k1"\n'


def read_file(path: PurePath) -> str:
    try:
        return FILES[str(path)]
    except KeyError:
        raise FileNotFoundError(2, "No such file or directory", str(path)) from None


def load(text: str, environ: Mapping[str, str] | None = None) -> Example:
    return load_settings(
        Example,
        text,
        source="conf/example.toml",
        base=Path("/etc/example"),
        environ=environ or {},
        read_file=read_file,
    )


def problems(text: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(text, environ)
    return caught.value.problems


def test_what_is_not_given_has_its_default() -> None:
    settings = load(MINIMAL)
    assert settings.door == DoorSettings(cache_path=Path("/etc/example/var/cache"))
    assert settings.door.listen == (Address("127.0.0.1", 1),)
    assert settings.peer.base_url == "https://peer.example"


def test_values_have_their_types() -> None:
    door = load(
        MINIMAL
        + '[Door]\nListen = ["[::1]:8080", "localhost:0"]\nWaitSeconds = 2\nMaxSize = 100\nOpen = false\n'
        'WhenFull = "drop"\nCachePath = "../cache"\nCertFile = "cert.pem"\nTags = "one"\n'
    ).door
    assert door.listen == (Address("::1", 8080), Address("localhost", 0))
    assert [str(address) for address in door.listen] == ["[::1]:8080", "localhost:0"]
    assert (door.wait_seconds, type(door.wait_seconds)) == (2.0, float)
    assert (door.max_size, door.open, door.when_full, door.tags) == (100, False, "drop", ("one",))
    assert str(door.cache_path) == "/etc/cache"
    assert door.cert_file == Path("/etc/example/cert.pem")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MaxSiz = 3", "conf/example.toml:5: Door.MaxSiz: unknown key, did you mean MaxSize?"),
        ("maxsize = 3", "conf/example.toml:5: Door.maxsize: unknown key, did you mean MaxSize?"),
        ('MaxSize = "3"', "conf/example.toml:5: Door.MaxSize: the value must be a whole number, not '3'"),
        ("MaxSize = 3.0", "conf/example.toml:5: Door.MaxSize: the value must be a whole number, not 3.0"),
        ("MaxSize = true", "conf/example.toml:5: Door.MaxSize: the value must be a whole number, not true"),
        (
            "MaxSize = 101",
            "conf/example.toml:5: Door.MaxSize: the value must be at least 1 and at most 100, not 101",
        ),
        (
            "MaxSize = 0",
            "conf/example.toml:5: Door.MaxSize: the value must be at least 1 and at most 100, not 0",
        ),
        ("MaxSize = 7", "conf/example.toml:5: Door.MaxSize: must be even"),
        (
            "WaitSeconds = nan",
            "conf/example.toml:5: Door.WaitSeconds: the value must be at least 0.1 and at most 60, not nan",
        ),
        (
            "WaitSeconds = inf",
            "conf/example.toml:5: Door.WaitSeconds: the value must be at least 0.1 and at most 60, not inf",
        ),
        ("Open = 1", "conf/example.toml:5: Door.Open: the value must be true or false, not 1"),
        (
            'WhenFull = "wait"',
            "conf/example.toml:5: Door.WhenFull: the value must be one of refuse, drop, not 'wait'",
        ),
        (
            "Tags = [1]",
            "conf/example.toml:5: Door.Tags: the value must be text in quotes or a list of them, not 1",
        ),
        ('CachePath = ""', "conf/example.toml:5: Door.CachePath: the value must not be empty"),
        (
            'CertFile = "none.pem"',
            "conf/example.toml:5: Door.CertFile: can't read /etc/example/none.pem: No such file or directory",
        ),
        (
            'Listen = "8080"',
            (
                "conf/example.toml:5: Door.Listen: "
                "the value must be host:port such as 127.0.0.1:8080 or [::1]:8080, not '8080'"
            ),
        ),
        (
            'Listen = "h:284430"',
            (
                "conf/example.toml:5: Door.Listen: the value must be host:port with a port up to "
                "65535, not 'h:284430'"
            ),
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(line: str, expected: str) -> None:
    assert problems(f"{MINIMAL}[Door]\n{line}\n") == (expected,)


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    report = problems(
        'Loose = 1\n[Dor]\nX = 1\n[Peer]\nBaseUrl = "ftp://peer"\n[Door]\nMaxSize = 1000\nColour = "red"\n'
    )
    assert [problem.split(": ", 2)[:2] for problem in report] == [
        ["conf/example.toml:1", "Loose"],
        ["conf/example.toml:2", "Dor"],
        ["conf/example.toml:4", "Peer.ApiKey"],
        ["conf/example.toml:5", "Peer.BaseUrl"],
        ["conf/example.toml:7", "Door.MaxSize"],
        ["conf/example.toml:8", "Door.Colour"],
    ]
    assert "unknown section, did you mean Door?" in report[1]
    assert "missing, and required (or ApiKeyFile)" in report[2]
    (unknown,) = problems(MINIMAL + "[Cert]\n")
    assert unknown.endswith("Cert: unknown section, did you mean Door, which has the key CertFile?")


def test_a_required_key_without_its_section_names_the_file() -> None:
    assert problems("")[0] == "conf/example.toml: Peer.BaseUrl: missing, and required"


def test_a_section_given_as_a_value_says_how_to_write_it() -> None:
    assert problems("Door = 5\n" + MINIMAL) == ("conf/example.toml:1: Door: is a section: write [Door]",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Door]\nWhenFull = refuse\n", "conf/example.toml:2:12: Invalid value: write text in quotes"),
        ("[Door]\nMaxSize == 3\n", "conf/example.toml:2:10: Invalid value"),
        ("[Door]\nTags = [1,", "conf/example.toml:2:11: Invalid value"),
        ('[Door]\nWhenFull = "a\nb"\n', "conf/example.toml:2:14: Illegal character '\\n'"),
        (
            "[Door]\nOpen = true\nOpen = true\n",
            "conf/example.toml:3:12: Open is given twice in its section: remove one of the two lines",
        ),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, expected: str) -> None:
    assert problems(text) == (expected,)


@pytest.mark.parametrize("text", ["[Door]\nMaxSize = " + "1" * 5000, "[Door]\nTags = " + "[" * 100_000])
def test_what_the_parser_chokes_on_is_a_problem_not_a_traceback(text: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith("conf/example.toml")
    assert "\n" not in problem


class TestEnvironment:
    def test_overrides_are_typed(self) -> None:
        environ = {
            "Door__MaxSize": "20",
            "Door__WaitSeconds": "0.5",
            "Door__Open": "False",
            "Door__Listen": "127.0.0.1:1, [::1]:2",
            "Door__Tags": "",
            "Unrelated__Thing": "1",
            "PATH": "/bin",
        }
        door = load(MINIMAL + "[Door]\nMaxSize = 30\nTags = ['a']\n", environ).door
        assert (door.max_size, door.wait_seconds, door.open, door.tags) == (20, 0.5, False, ())
        assert door.listen == (Address("127.0.0.1", 1), Address("::1", 2))

    @pytest.mark.parametrize("text", ["abc", "", "1_0", " 5", "٣", "1e1", "9" * 5000, "+-1"])
    def test_only_plain_digits_are_a_whole_number(self, text: str) -> None:
        assert problems(MINIMAL, {"Door__MaxSize": text}) == (
            f"environment: Door__MaxSize: the value must be a whole number, not {text!r}",
        )

    @pytest.mark.parametrize("text", ["nan", "inf", "1e3", "", "1_0.0", "."])
    def test_only_a_plain_decimal_is_a_number(self, text: str) -> None:
        assert problems(MINIMAL, {"Door__WaitSeconds": text}) == (
            f"environment: Door__WaitSeconds: the value must be a number, not {text!r}",
        )

    def test_a_value_out_of_range_names_the_variable(self) -> None:
        assert problems(MINIMAL, {"Door__MaxSize": "200"}) == (
            "environment: Door__MaxSize: the value must be at least 1 and at most 100, not 200",
        )

    @pytest.mark.parametrize("variable", ["Door__MaxSiz", "DOOR__MAXSIZE", "door__MaxSize"])
    def test_an_unknown_override_is_never_ignored(self, variable: str) -> None:
        assert problems(MINIMAL, {variable: "20"}) == (
            f"environment: {variable}: unknown setting, did you mean Door__MaxSize?",
        )

    def test_a_colon_is_as_good_as_two_underscores(self) -> None:
        environ = {"Door:MaxSize": "20", "Peer:ApiKeyFile": "key.txt"}
        settings = load(MINIMAL + "[Door]\nMaxSize = 30\n", environ)
        assert (settings.door.max_size, settings.peer.api_key) == (20, "from-a-file")
        assert problems(MINIMAL, {"Door:MaxSize": "200"}) == (
            "environment: Door:MaxSize: the value must be at least 1 and at most 100, not 200",
        )

    @pytest.mark.parametrize("variable", ["Door:MaxSiz", "DOOR:MAXSIZE", "door:MaxSize", "Door:Max:Size"])
    def test_an_unknown_override_with_a_colon_is_never_ignored(self, variable: str) -> None:
        assert problems(MINIMAL, {variable: "20"}) == (
            f"environment: {variable}: unknown setting, did you mean Door__MaxSize?",
        )
        assert load(MINIMAL, {"Logging:MaxSize": "20"}).door.max_size == load(MINIMAL).door.max_size

    def test_one_key_in_both_spellings_is_refused(self) -> None:
        both = {"Door:MaxSize": "20", "Door__MaxSize": "20"}
        assert problems(MINIMAL, both) == ("environment: Door:MaxSize: given twice, also as Door__MaxSize",)

    def test_a_variable_of_its_own_wins_over_everything(self) -> None:
        environ = {"MAX_SIZE": "40", "Door__MaxSize": "20"}
        assert load(MINIMAL + "[Door]\nMaxSize = 30\n", environ).door.max_size == 40
        assert problems(MINIMAL, {"MAX_SIZE": "many"}) == (
            "environment: MAX_SIZE: the value must be a whole number, not 'many'",
        )

    def test_a_fallback_variable_fills_only_what_is_not_given(self) -> None:
        without_key = '[Peer]\nBaseUrl = "https://peer.example"\n'
        assert load(without_key, {"PEER_KEY": "fallback"}).peer.api_key == "fallback"
        assert load(MINIMAL, {"PEER_KEY": "fallback"}).peer.api_key == "k1"


class TestSecrets:
    TEXT = '[Peer]\nBaseUrl = "https://peer.example"\n'

    def test_a_secret_may_be_a_file(self) -> None:
        assert load(self.TEXT + 'ApiKeyFile = "key.txt"\n').peer.api_key == "from-a-file"
        assert load(self.TEXT, {"Peer__ApiKeyFile": "/etc/example/key.txt"}).peer.api_key == "from-a-file"

    def test_the_environment_replaces_either_form_of_the_file(self) -> None:
        assert load(MINIMAL, {"Peer__ApiKeyFile": "key.txt"}).peer.api_key == "from-a-file"
        assert load(self.TEXT + 'ApiKeyFile = "gone"\n', {"Peer__ApiKey": "k2"}).peer.api_key == "k2"

    def test_both_forms_in_one_place_are_refused(self) -> None:
        expected = "Peer.ApiKey: given twice, as ApiKey and as ApiKeyFile"
        assert problems(MINIMAL + 'ApiKeyFile = "key.txt"\n') == (f"conf/example.toml:4: {expected}",)
        both = {"Peer__ApiKey": "k", "Peer__ApiKeyFile": "key.txt"}
        assert problems(self.TEXT, both) == (f"environment: {expected}",)
        (problem,) = problems(MINIMAL + 'Pin = "1"\nPinFile = "pin"\n')
        assert "Peer.Pin: given twice" in problem

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("gone", "can't read /etc/example/gone: No such file or directory"),
            ("empty", "empty is empty"),
            ("", "the value must be the path"),
        ],
    )
    def test_a_secret_file_that_is_no_use_is_named(self, path: str, reason: str) -> None:
        (problem,) = problems(f'{self.TEXT}ApiKeyFile = "{path}"\n')
        assert problem.startswith(f"conf/example.toml:3: Peer.ApiKeyFile: {reason}")

    def test_a_section_may_give_the_file_key_its_own_meaning(self) -> None:
        peer = load(MINIMAL + 'PinFile = "not-there-yet"\n').peer
        assert (peer.pin, peer.pin_file) == ("", Path("/etc/example/not-there-yet"))

    def test_no_output_shows_a_secret(self) -> None:
        settings = load(MINIMAL.replace("k1", "s3cr3t-value"))
        for shown in (describe(settings), repr(settings), str(settings)):
            assert "s3cr3t-value" not in shown
        assert 'ApiKey = "********"' in describe(settings)

    def test_an_error_about_a_secret_does_not_show_it(self) -> None:
        (problem,) = problems(self.TEXT + "ApiKey = 123456789\n")
        assert problem == "conf/example.toml:3: Peer.ApiKey: the value must be text in quotes"


def test_what_describe_prints_loads_to_the_same_settings() -> None:
    settings = load(MINIMAL + '[Door]\nListen = ["[::1]:8080"]\nTags = ["a\\"b", "c"]\n')
    text = describe(settings).replace("********", "k1")
    assert load(text.replace('Pin = ""', "")) == settings


def test_the_reference_holds_every_key() -> None:
    text = reference(Example)
    assert "### [Door]" in text
    assert "| `WaitSeconds` | number, 0.1–60 | `1.5` | How long. |" in text
    assert "| `ApiKey`, `ApiKeyFile` | secret | *required* | Key. |" in text
    assert '| `WhenFull` | `refuse` \\| `drop` | `"refuse"` | What then. |' in text
    assert "| `Pin` | secret | – | Pin. |" in text


class TestLines:
    """Tests of the line numbers of settings keys, in every way that TOML lets them be written."""

    TEXT = '''\
# [Comment]
[Door] # after
Tags = [
  "]", # ] in a comment
  """
# MaxSize = 1 in a string""""",
]
WhenFull = \'\'\'
[Nowhere]
\'\'\'
"Quoted\\u0041" = 'it''s'

Peer.BaseUrl = 1
inner = { a = 1, b = { "c" = [1, 2] }, d.e = "}" }
when = 1979-05-27 07:32:00
[ Peer . "Deep" ]
X = {}
[[Many]]
Y = 1
[[Many]]
Y = 2
'''

    def test_each_key_has_its_line(self) -> None:
        text = self.TEXT.replace("'it''s'", "'its'")
        lines = key_lines(text)
        assert lines[("Door",)] == 2
        assert lines[("Door", "Tags")] == 3
        assert lines[("Door", "WhenFull")] == 8
        assert lines[("Door", "QuotedA")] == 11
        assert lines[("Door", "Peer", "BaseUrl")] == 13
        assert lines[("Door", "inner", "b", "c")] == 14
        assert lines[("Door", "inner", "d", "e")] == 14
        assert lines[("Door", "when")] == 15
        assert lines[("Peer", "Deep")] == 16
        assert lines[("Peer", "Deep", "X")] == 17
        assert (lines["Many",], lines["Many", "0"], lines["Many", "1"]) == (18, 18, 20)
        assert (lines["Many", "0", "Y"], lines["Many", "1", "Y"]) == (19, 21)
        assert ("Nowhere",) not in lines
        assert not any("MaxSize" in path for path in lines)

    def test_line_ends_of_windows_count_once(self) -> None:
        assert key_lines("[A]\r\nB = 1\r\nC = 2\r\n") == {("A",): 1, ("A", "B"): 2, ("A", "C"): 3}

    def test_inline_table_and_dotted_keys_give_places_to_problems(self) -> None:
        text = 'Peer = { BaseUrl = "https://p", ApiKey = "k" }\nDoor.Open = true\nDoor.MaxSize = "x"\n'
        assert problems(text) == (
            "conf/example.toml:3: Door.MaxSize: the value must be a whole number, not 'x'",
        )


def paths_of(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*prefix, key))


WORDS = (
    "[Door] [Peer] [[Many]] [Door.Deep] MaxSize Open ApiKey 'l' a.b = = = 1 1.5 true {} # , [ ] { } . é \\"
)
PIECES = st.sampled_from(
    [
        *WORDS.split(),
        *('"q k"', '"text"', '"""a\n"b" """', "'''c\n'''", '"', "'", '"\\n"'),
        *("[1, 2]", "[\n1, # c\n]", "{ a = 1 }", " = ", "# [x] y = 1\n"),
        *("\n", "\n", "\n", "\r\n", " ", "\t", "\0"),
    ]
)


def problems_if_any(text: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    try:
        load(text, environ)
    except SettingsError as error:
        return error.problems
    return ()


class TestAnyText:
    """Tests that any settings file or variable gives settings or one-line problems, never a traceback."""

    @given(st.lists(PIECES, max_size=40).map("".join))
    def test_in_a_file(self, text: str) -> None:
        assert all(problem.isprintable() for problem in problems_if_any(text))

    @given(st.lists(PIECES, max_size=40).map("".join))
    def test_every_key_that_the_parser_finds_has_a_line(self, text: str) -> None:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return
        lines = key_lines(text)
        assert [path for path in paths_of(document) if path not in lines] == []

    @given(st.text(max_size=30))
    def test_in_a_variable(self, text: str) -> None:
        for name in ("MaxSize", "WaitSeconds", "Open", "Listen", "CachePath", "CertFile", "WhenFull"):
            report = problems_if_any(MINIMAL, {f"Door__{name}": text})
            assert all(problem.isprintable() for problem in report)
            assert all(f"Door__{name}" in problem or "must be even" in problem for problem in report)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":8080",
        "8080",
        "host",
        "host:",
        "host:65536",
        "::1:80",
        "[host]:80",
        "host:8o",
        "host:٣",
        "a b:1",
        "h:-1",
        "h:+1",
    ],
)
def test_what_is_not_host_and_port_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("must be host:port")):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    ["peer", "//peer", "ftp://peer", "https://", "https://u:p@peer", "https://peer?x", "https://peer/#x",
     "https://peer:99999", "https://pe er", "https://peer\n", "https://[::1", "https://bücher.example"],
)  # fmt: skip
def test_what_is_not_a_base_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_url(text)


@pytest.mark.parametrize(
    "password", ["secret", "se/cret", "1/secret", "secr?t", "secr#t", "s@cret", "[secret]"]
)
def test_a_base_address_with_a_password_is_refused_unseen(password: str) -> None:
    with pytest.raises(ValueError, match="without user and password") as refused:
        parse_url(f"https://user:{password}@peer/v1")
    assert password not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("https://peer:443/", "https://peer"),
        ("https://peer:", "https://peer"),
        ("https://peer:80/v1", "https://peer:80/v1"),
        ("http://peer:80/a/", "http://peer/a"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://[::80]", "http://[::80]"),
    ],
)
def test_a_base_address_has_no_port_that_goes_without_saying(text: str, base: str) -> None:
    """The proxy recognises links by their base address, and links omit the default port of their scheme."""
    assert parse_url(text) == base


def test_an_origin_has_no_path() -> None:
    assert parse_origin("https://graph.example:8443/") == "https://graph.example:8443"
    with pytest.raises(ValueError, match="without a path"):
        parse_origin("https://graph.example/v1.0")


def test_a_network_has_no_host_bits() -> None:
    assert parse_network("10.0.0.0/8").num_addresses == 1 << 24
    with pytest.raises(ValueError, match="must be an address or network"):
        parse_network("10.0.0.1/8")
