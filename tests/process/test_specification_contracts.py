"""Tests of the contracts, statement by statement: programs, settings, agent API bodies, rulesets."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.fakes.control_plane import FakeControlPlane, error, ruleset_yaml, sync_body
from tests.fakes.graph import FakeGraph
from tests.fakes.ports import free_port
from tests.fakes.server import RawResponse, Response
from tests.process.specification import (
    JSON,
    RFC3339_MS,
    UUID7,
    Live,
    Loop,
    Operator,
    Process,
    fake_proxy_settings,
    run,
    send,
    started,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

RULESET = "version: 1\nname: rules\nrules:\n  - {id: r1, match: {path: [/v1.0/users]}, verdict: allow}\n"


# 1. Programs


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return a control plane's files, with an organisation, a proxy, a ruleset and an app identity."""
    operator = Operator(tmp_path_factory.mktemp("operator"))
    operator.json("org", "add", "first")
    operator.ruleset(RULESET, "first")
    operator.json("proxy", "add", "edge", "--org", "first")
    operator.json("app", "add", "crm", "--org", "first", "--ruleset", "rules")
    return operator


def lines_on_stderr(stderr: str) -> list[str]:
    """Return the lines of standard error.

    Before the return, assert that each line of standard error makes sense without the other lines.
    """
    assert stderr.endswith("\n")
    lines = stderr.splitlines()
    assert all(
        line.strip() and not line.startswith((" ", "Traceback", "Usage", "usage")) for line in lines
    ), lines
    return lines


@pytest.mark.parametrize("tier", ["base", "90d", "1y", "7y"])
def test_org_add(operator: Operator, tier: str) -> None:
    """The command `org add NAME [--retention base|90d|1y|7y] --json` prints {"orgId","name","retention"}."""
    report = operator.json("org", "add", f"org-{tier}", "--retention", tier)
    assert report == {"orgId": report["orgId"], "name": f"org-{tier}", "retention": tier}
    assert UUID7.fullmatch(report["orgId"])


def test_org_add_keeps_base_by_default(operator: Operator) -> None:
    """If `--retention` is missing, the retention tier is base. An unknown retention tier is invalid input."""
    assert operator.json("org", "add", "plain")["retention"] == "base"
    done = operator.run("org", "add", "odd", "--retention", "2y", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(lines_on_stderr(done.stderr)) == 1


def test_proxy_add(operator: Operator) -> None:
    """The command `proxy add NAME --org ORG [--org ORG …]` prints {"proxyId","apiKey","hmacSecret"}.

    The secrets of a proxy are printed only once, by `proxy add`. The argument ORG accepts the id or the name
    of an organisation.
    """
    other = operator.json("org", "add", "other")["orgId"]
    report = operator.json("proxy", "add", "of-two", "--org", "first", "--org", other)
    assert list(report) == ["proxyId", "apiKey", "hmacSecret"]
    assert UUID7.fullmatch(report["proxyId"])
    for shown in (operator.run("proxy", "show", "of-two", "--json"), operator.run("proxy", "list", "--json")):
        assert shown.returncode == 0
        assert report["apiKey"] not in shown.stdout
        assert report["hmacSecret"] not in shown.stdout
    assert operator.json("proxy", "show", report["proxyId"])["orgs"] == ["first", "other"]


def test_ruleset_apply(operator: Operator) -> None:
    """The command `ruleset apply FILE --org ORG` validates the ruleset, and stores it as a new version.

    It prints {"rulesetId","name","version"}.
    """
    first = operator.ruleset(RULESET.replace("rules\n", "mine\n", 1), "first")
    assert {"rulesetId", "name", "version"} <= set(first)
    assert (first["name"], first["version"]) == ("mine", 1)
    second = operator.ruleset(RULESET.replace("rules\n", "mine\n", 1).replace("allow", "block"), "first")
    assert (second["rulesetId"], second["version"]) == (first["rulesetId"], 2)


def test_app_add(operator: Operator) -> None:
    """The command `app add NAME --org ORG --ruleset NAME` prints {"appId","clientId","clientSecret"}.

    The secret of an application is printed only once, by `app add`.
    """
    report = operator.json("app", "add", "hr", "--org", "first", "--ruleset", "rules")
    assert list(report) == ["appId", "clientId", "clientSecret"]
    for shown in (operator.run("app", "show", "hr", "--json"), operator.run("app", "list", "--json")):
        assert shown.returncode == 0
        assert report["clientSecret"] not in shown.stdout


def test_audit_search(operator: Operator) -> None:
    """The command `audit search` prints the object {"events", "next"}.

    The arguments of `audit search` are [FILTER] [--org] [--from] [--to] [--limit] [--cursor].
    """
    options = ("--org", "first", "--from", "2026-01-01", "--to", "2036-01-01T00:00:00Z", "--limit", "5")
    assert operator.json("audit", "search", "verdict:block", *options) == {"events": [], "next": None}
    done = operator.run("audit", "search", "--cursor", "nonsense", "--json")
    assert (done.returncode, len(lines_on_stderr(done.stderr))) == (2, 1)


@pytest.mark.parametrize(
    "command",
    [
        "org list", "org show first", "proxy list", "proxy show edge", "ruleset list", "ruleset show rules",
        "app list", "app show crm", "app rotate-secret crm", "app disable crm", "app enable crm",
        "proxy disable edge", "proxy enable edge", "ruleset history rules",
    ],
)  # fmt: skip
def test_every_command_has_json_and_a_form_for_people(operator: Operator, command: str) -> None:
    """Each command, such as {org,proxy,ruleset,app} list/show, has `--json`.

    Without `--json`, each command prints the same facts as lines for a person.
    """
    facts = operator.json(*command.split())
    assert isinstance(facts, dict)
    if "list" not in command and command not in ("org show first", "app show crm"):
        return
    done = operator.run(*command.split())
    assert (done.returncode, done.stderr) == (0, "")
    rows = next((value for name, value in facts.items() if name == command.split()[0] + "s"), [facts])
    for name in ("name", "clientId", "retention", "version"):
        assert str(rows[0].get(name, "")) in done.stdout


def test_ruleset_rollback(operator: Operator) -> None:
    """The command `ruleset rollback` activates an older text again, as a new version."""
    for verdict in ("allow", "block"):
        operator.ruleset(RULESET.replace("rules\n", "back\n", 1).replace("allow", verdict), "first")
    assert operator.json("ruleset", "rollback", "back")["version"] == 3
    assert "verdict: allow" in operator.json("ruleset", "show", "back")["yaml"]
    assert [row["version"] for row in operator.json("ruleset", "history", "back")["versions"]] == [3, 2, 1]


@pytest.mark.parametrize(
    ("status", "command"),
    [
        (1, "org add first"),
        (1, "org show nobody"),
        (1, "app add x --org first --ruleset none"),
        (1, "app add x --org nobody --ruleset rules"),
        (1, "proxy add edge --org first"),
        (1, "ruleset rollback rules --to 99"),
        (2, "org"),
        (2, "org add"),
        (2, "org ad x"),
        (2, "nonsense"),
        (2, "org list --jsn"),
        (2, "proxy add without-org"),
        (2, "ruleset apply no-such-file.yaml --org first"),
        (2, "audit search --limit 0"),
        (2, "audit search stauts:3"),
        (2, "audit search --from yesterday"),
        (2, "app rotate-secret crm --grace 5"),
    ],
)
def test_exit_status_and_standard_error(operator: Operator, status: int, command: str) -> None:
    """Exit status of a command: 0 for success, 1 for a failed operation, 2 for usage or invalid input.

    Each command prints one line for each error to standard error.
    """
    done = operator.run(*command.split(), "--json")
    assert (done.returncode, done.stdout) == (status, ""), done
    assert len(lines_on_stderr(done.stderr)) == 1


def test_errors_name_file_line_and_column(operator: Operator, tmp_path: Path) -> None:
    """If an error is in a file, the error line names the file, line and column.

    The command `ruleset apply` refuses a bad ruleset completely, and reports every error.
    """
    before = operator.json("ruleset", "show", "rules")["version"]
    file = tmp_path / "bad.yaml"
    file.write_text(
        "version: 1\nname: rules\ndefault: maybe\nrules:\n"
        "  - {id: default, match: {path: [/v1.0/users]}, verdict: allow}\n"
        "  - id: r1\n    match: {path: [v1.0/users]}\n    verdict: filter\n"
        "    conditions: [{query: a, matches: '(?=x)'}]\n"
        "  - {id: r1, match: {path: [/v1.0/**/x]}, verdict: block}\n"
    )
    done = operator.run("ruleset", "apply", str(file), "--org", "first", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    lines = lines_on_stderr(done.stderr)
    places = [re.match(re.escape(str(file)) + r":(\d+):(\d+): \S", line) for line in lines]
    assert all(places), lines
    assert sorted(int(place[1]) for place in places if place) == [3, 5, 7, 8, 9, 10, 10]
    assert operator.json("ruleset", "show", "rules")["version"] == before


def in_use(module: str, settings: str, directory: Path) -> tuple[int, list[str]]:
    config = directory / f"{module}.toml"
    with socket.create_server(("127.0.0.1", 0)) as held:
        config.write_text(settings.replace("PORT", str(held.getsockname()[1])))
        done = run(module, "--config", str(config))
    return done.returncode, [line for line in done.stderr.splitlines() if "listening" not in line]


def test_a_control_plane_that_cannot_start_is_status_1(tmp_path: Path) -> None:
    """If the control plane's address is in use, the start ends with status 1 and one error line."""
    status, lines = in_use(
        "controlplane", '[ControlPlane]\nListen = "127.0.0.1:PORT"\n[Metrics]\nListen = []\n', tmp_path
    )
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith("ControlPlane.Listen: 127.0.0.1:")
    assert "in use" in lines[0]


PROXY = """\
[Proxy]
Listen = "127.0.0.1:PORT"
[Agent]
ApiKey = "the-api-key-itself"
HmacSecret = "the-hmac-secret-itself"
[RuleSync]
SaasBaseUrl = "http://127.0.0.1:1"
[Credentials]
Provider = "static"
AccessToken = "the-access-token-itself"
"""


def test_a_proxy_that_cannot_start_is_status_1(tmp_path: Path) -> None:
    """If another program uses the proxy's address, the proxy ends with status 1 and names the address."""
    status, lines = in_use("proxy", PROXY + f'[Admin]\nListen = "127.0.0.1:{free_port()}"\n', tmp_path)
    assert "in use" in lines[0]
    assert (status, len(lines)) == (1, 1)


def test_a_usage_error_of_the_proxy_is_one_line() -> None:
    """A wrongly used command exits with status 2 and prints one line per error to standard error."""
    done = run("proxy", "--chek")
    assert done.returncode == 2
    assert len(lines_on_stderr(done.stderr)) == 1


# 2. Settings


def check(directory: Path, text: str, **environment: str) -> tuple[int, str, list[str]]:
    """Run `python -m proxy --config FILE --check`.

    Return the exit status, the output and the error lines of `--check`.
    """
    config = directory / "proxy.toml"
    config.write_text(text.replace("PORT", "0"), "utf-8")
    done = run("proxy", "--config", str(config), "--check", **environment)
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    return done.returncode, done.stdout, done.stderr.splitlines()


SECRETS = ("the-api-key-itself", "the-hmac-secret-itself", "the-access-token-itself", "another-secret-itself")


def test_check_prints_the_resolved_settings_with_secrets_masked(tmp_path: Path) -> None:
    """The option `--check` prints the resolved settings with secrets masked, and exits 0 or 2.

    The option `--check` loads and validates all files that the settings name.
    """
    status, out, errors = check(tmp_path, PROXY)
    assert (status, errors) == (0, [])
    report = tomllib.loads(out)
    assert report["Agent"]["ApiKey"]
    assert report["Proxy"]["Listen"] == ["127.0.0.1:0"]
    assert not (tmp_path / "var").exists()


def test_defaults(tmp_path: Path) -> None:
    """Test that the default of each setting is the default in the contract.

    The tested defaults include CatchUp true, LifetimeSeconds 3600, ReportAs502, RewriteLinks and
    RequireSignedResponse.
    """
    _, out, _ = check(tmp_path, PROXY)
    report = tomllib.loads(out)
    assert report["Audit"]["CatchUp"] is True
    assert report["Audit"]["WhenFull"] == "refuse"
    assert report["Audit"]["MaxBatchSize"] == 500
    assert report["Token"]["LifetimeSeconds"] == 3600
    assert report["Upstream"]["ReportAs502"] == ["500-502", "505-599"]
    assert report["Upstream"]["RewriteLinks"] is True
    assert report["RuleSync"]["RequireSignedResponse"] is True
    assert report["RuleSync"]["MaxStalenessSeconds"] == 0
    assert report["Admin"]["Listen"].startswith("127.0.0.1:")


def test_every_key_of_the_contract_is_known(tmp_path: Path) -> None:
    """The proxy accepts every key of the settings file that the specification defines.

    The settings file has the sections [Proxy], [Agent], [RuleSync], [Audit], [Token], [Upstream],
    [Credentials], [Admin] and [Log].
    """
    text = """\
[Proxy]
Listen = ["127.0.0.1:0", "[::1]:0"]
Workers = 2
PublicBaseUrl = "https://graph.contoso.example"
TrustedProxies = ["10.0.0.0/8"]
[Agent]
ApiKey = "the-api-key-itself"
HmacSecret = "the-hmac-secret-itself"
[RuleSync]
SaasBaseUrl = "http://127.0.0.1:1"
IntervalSeconds = 30
CachePath = "cache/snapshot.json"
MaxStalenessSeconds = 0
RequireSignedResponse = true
[Audit]
IngestionUrl = "http://127.0.0.1:1"
LocalRetentionPath = "audit"
ReplayIntervalSeconds = 30
MaxBatchSize = 500
CatchUp = true
WhenFull = "drop-oldest"
[Token]
LifetimeSeconds = 3600
SigningKey = "another-secret-itself-of-enough-length"
[Upstream]
BaseUrl = "https://graph.microsoft.com"
ReportAs502 = ["500-502", "505-599"]
RewriteLinks = true
[Credentials]
Provider = "environment"
VaultUrl = "https://vault.example"
SecretName = "graph"
TenantId = "t"
ClientId = "c"
ClientSecret = "another-secret-itself"
AuthorityUrl = "https://login.example"
Scope = "https://graph.microsoft.com/.default"
AccessToken = "the-access-token-itself"
[Admin]
Listen = "127.0.0.1:0"
[Log]
"""
    status, _, warnings = check(tmp_path, text)
    assert status == 0
    assert all("has no effect, because Provider is environment" in each for each in warnings)


@pytest.mark.parametrize(
    ("added", "line", "says"),
    [
        ("[Audit]\nMaxBatchSiz = 3\n", 12, ["Audit.MaxBatchSiz", "MaxBatchSize"]),
        ("[Audi]\nMaxBatchSize = 3\n", 11, ["Audi", "Audit"]),
        ('[Audit]\nMaxBatchSize = "3"\n', 12, ["Audit.MaxBatchSize"]),
        ("[Audit]\nMaxBatchSize = true\n", 12, ["Audit.MaxBatchSize"]),
        ("[Audit]\nMaxBatchSize = 0\n", 12, ["Audit.MaxBatchSize"]),
        ("[Audit]\nReplayIntervalSeconds = nan\n", 12, ["Audit.ReplayIntervalSeconds"]),
        ('[Audit]\nWhenFull = "drop"\n', 12, ["Audit.WhenFull", "refuse", "drop-oldest"]),
        ("[Audit\n", 11, []),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(
    tmp_path: Path, added: str, line: int, says: list[str]
) -> None:
    """The proxy's error about a wrong settings key names the key, file, line and nearest known key."""
    config = tmp_path / "proxy.toml"
    config.write_text(PROXY.replace("PORT", "0") + added)
    done = run("proxy", "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    (report,) = done.stderr.splitlines()
    assert report.startswith(f"{config}:{line}:")
    assert all(word in report for word in says), report


def test_the_environment_overrides_any_key(tmp_path: Path) -> None:
    """An environment variable with two underscores (`Audit__MaxBatchSize=200`) overrides any settings key."""
    _, out, _ = check(
        tmp_path,
        PROXY + "[Audit]\nMaxBatchSize = 7\n",
        Audit__MaxBatchSize="200",
        Upstream__RewriteLinks="false",
        Upstream__ReportAs502="500,505-510",
    )
    report = tomllib.loads(out)
    assert report["Audit"]["MaxBatchSize"] == 200
    assert report["Upstream"]["RewriteLinks"] is False
    assert report["Upstream"]["ReportAs502"] == ["500", "505-510"]
    for name, value in (("Audit__MaxBatchSiz", "2"), ("Audit__MaxBatchSize", "many")):
        status, _, errors = check(tmp_path, PROXY, **{name: value})
        assert (status, len(errors)) == (2, 1)
        assert "Audit__MaxBatchSize" in errors[0]


def test_a_secret_can_be_given_as_a_file_and_paths_are_relative_to_the_settings(tmp_path: Path) -> None:
    """Any secret can be given as a file (`Agent__HmacSecretFile`), relative to the settings file."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hmac").write_text("another-secret-itself\n")
    text = PROXY.replace('HmacSecret = "the-hmac-secret-itself"', 'HmacSecretFile = "secrets/hmac"')
    assert check(tmp_path, text)[::2] == (0, [])
    bare = PROXY.replace('HmacSecret = "the-hmac-secret-itself"\n', "")
    assert check(tmp_path, bare, Agent__HmacSecretFile="secrets/hmac")[::2] == (0, [])
    status, _, errors = check(tmp_path, bare, Agent__HmacSecretFile="secrets/none")
    assert (status, len(errors)) == (2, 1)
    assert "HmacSecretFile" in errors[0]
    status, _, errors = check(tmp_path, bare)
    assert (status, len(errors)) == (2, 1)
    assert "Agent.HmacSecret" in errors[0]


@pytest.mark.parametrize("name", ["AUDIT_RATE_LIMIT_ORG", "AUDIT_RATE_LIMIT_PROXY"])
def test_rate_limits_of_the_environment_are_checked_too(operator: Operator, name: str) -> None:
    """The control plane reads the variables AUDIT_RATE_LIMIT_*, which override its settings file.

    The tests in test_specification_agent_api.py check that environment variables override the settings file.
    """
    for value in ("0", "many", "1.5"):
        done = operator.run("org", "list", **{name: value})
        assert done.returncode == 2
        (report,) = lines_on_stderr(done.stderr)
        assert name in report
    assert "at most 1000000," in operator.run("org", "list", **{name: "1000001"}).stderr


def test_files_are_made_at_the_first_start_and_private(operator: Operator) -> None:
    """The first start creates the SQLite file at Path.

    If MasterKeyFile is missing, the control plane creates the file with mode 0600 when it starts.
    """
    made = [path for path in (operator.directory / "var").iterdir() if path.is_file()]
    assert {"controlplane.db", "master.key"} <= {path.name for path in made}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made)


# 3. Agent API bodies


@dataclass
class Scripted:
    """A proxy with a scripted control plane and one application, `client-1`."""

    loop: Loop
    control: FakeControlPlane
    graph: FakeGraph
    directory: Path
    admin: str
    config: Path
    url: str = ""
    process: Process | None = None

    @contextmanager
    def running(self, **environment: str) -> Iterator[None]:
        log = self.directory / f"proxy-{time.monotonic_ns()}.log"
        with started(log, "proxy", "--config", str(self.config), **environment) as self.process:
            self.url = self.process.until_said(r"listening on (http://\S+) ")
            yield
            self.process.stop()
            assert "Traceback" not in self.process.output

    def ready(self) -> bool:
        try:
            return send(self.admin, "GET", "/readyz").status == 200
        except OSError:
            return False

    def token_status(self) -> tuple[int, Any]:
        form = b"grant_type=client_credentials&client_id=client-1&client_secret=its-secret"
        fields = [("Content-Type", "application/x-www-form-urlencoded")]
        reply = send(self.url, "POST", "/proxy/token", fields, form)
        return reply.status, reply.json

    def ask(self, target: str, *fields: tuple[str, str]) -> int:
        status, report = self.token_status()
        assert status == 200, report
        bearer = ("Authorization", f"Bearer {report['access_token']}")
        return send(self.url, "GET", target, [bearer, *fields]).status


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    directory = tmp_path_factory.mktemp("scripted")
    loop = Loop()
    control, graph = FakeControlPlane(record=True), FakeGraph()
    loop.run(control.__aenter__())
    loop.run(graph.__aenter__())
    try:
        admin = free_port()
        config = fake_proxy_settings(
            directory, control.base_url, graph.base_url, admin, "[Audit]\nReplayIntervalSeconds = 1\n"
        )
        control.sync_body = rules()
        yield Scripted(loop, control, graph, directory, f"http://127.0.0.1:{admin}", config)
        assert control.problems == []
    finally:
        loop.run(graph.__aexit__(None, None, None))
        loop.run(control.__aexit__(None, None, None))
        loop.close()


def rules(path: str = "/v1.0/users", generated_at: str = "2026-11-21T04:25:58.123Z", **changes: Any) -> Any:
    app = sync_body()["apps"][0] | {"secretHashes": [PasswordHasher(1, 8, 1).hash("its-secret")]}
    ruleset = sync_body()["rulesets"][0] | {"yaml": ruleset_yaml(path=path)}
    return sync_body(
        apps=[app], rulesets=[ruleset], generatedAt=generated_at, version=generated_at, **changes
    )


@pytest.fixture(scope="module")
def reported(scripted: Scripted) -> FakeControlPlane:
    """Return a proxy's reports after three requests: one allowed, one blocked, and one upstream fault."""
    with scripted.running():
        until(scripted.ready)
        scripted.graph.raw_responses["/v1.0/users"] = RawResponse(
            b"HTTP/1.1 500 X\r\nrequest-id: up-7\r\nContent-Length: 2\r\n\r\n{}", close=False
        )
        assert scripted.ask("/v1.0/users?$top=5", ("client-request-id", "mine")) == 502
        del scripted.graph.raw_responses["/v1.0/users"]
        assert scripted.ask("/v1.0/users") == 200
        assert scripted.ask("/v1.0/unlisted") == 403
        control = scripted.control
        until(lambda: len(control.events.get("org-1", [])) >= 6)
        until(lambda: control.heartbeats and control.heartbeats[-1]["lastSeq"] == {"org-1": 6})
        until(lambda: sum(each["blocked"] for each in control.metrics) == 1)
    return control


def test_heartbeat_field_by_field(reported: FakeControlPlane) -> None:
    """A heartbeat has every field of the contract.

    {"version", "uptimeSeconds", "loadedRules", "syncVersion", "checks": {…: {"status", "detail"}}, "lastSeq",
    "auditPending", "oldestPendingSeconds"}
    """
    last = reported.heartbeats[-1]
    assert set(last) >= {"version", "uptimeSeconds", "loadedRules", "syncVersion", "checks", "lastSeq"}
    assert set(last) >= {"auditPending", "oldestPendingSeconds"}
    assert isinstance(last["version"], str)
    assert last["uptimeSeconds"] > 0
    assert (last["loadedRules"], last["syncVersion"]) == (1, "2026-11-21T04:25:58.123Z")
    assert "upstream" in last["checks"]
    for name, report in last["checks"].items():
        assert report["status"] in ("ok", "degraded", "failed"), name
        assert isinstance(report["detail"], str)
    assert last["lastSeq"] == {"org-1": 6}
    assert isinstance(last["auditPending"], int)
    assert last["oldestPendingSeconds"] >= 0


def test_metrics_field_by_field(reported: FakeControlPlane) -> None:
    """A metrics report has every field of the contract.

    {"windowStart", "windowEnd", counters…, "auditPending", "latencyMs": {"buckets", "sum", "count"}}. Each
    counter counts only within its time window, and each window begins at the end of the previous window.
    """
    counters = ("evaluated", "allowed", "blocked", "filtered", "loggedOnly", "upstreamErrors")
    for each in reported.metrics:
        assert set(each) >= {"windowStart", "windowEnd", *counters, "auditPending", "latencyMs"}
        assert RFC3339_MS.fullmatch(each["windowStart"])
        assert each["windowStart"] < each["windowEnd"]
        assert each["evaluated"] == sum(each[name] for name in counters[1:5])
        latency = each["latencyMs"]
        assert set(latency) == {"buckets", "sum", "count"}
        bounds = [bound for bound, _ in latency["buckets"]]
        counts = [count for _, count in latency["buckets"]]
        assert bounds == sorted(set(bounds))
        assert counts == sorted(counts)
        assert counts[-1] <= latency["count"]
    for one, other in zip(reported.metrics, reported.metrics[1:], strict=False):
        assert other["windowStart"] == one["windowEnd"]
    totals = {name: sum(each[name] for each in reported.metrics) for name in counters}
    assert (totals["blocked"], totals["filtered"], totals["loggedOnly"], totals["upstreamErrors"]) == (
        1,
        0,
        0,
        1,
    )


def test_event_field_by_field(reported: FakeControlPlane) -> None:
    """An event has every field of the contract.

    {"id", "time", "orgId", "proxyId", "appId", …, "upstreamRequestId"}; times are RFC 3339 with milliseconds,
    and ids are UUIDv7.
    """
    event = next(each for each in reported.events["org-1"] if each.get("clientRequestId") == "mine")
    known = {
        "orgId": "org-1",
        "proxyId": "proxy-1",
        "appId": "app-1",
        "clientId": "client-1",
        "clientIp": "127.0.0.1",
        "method": "GET",
        "path": "/v1.0/users",
        "query": "$top=5",
        "status": 502,
        "verdict": "allow",
        "ruleId": "r1",
        "upstreamStatus": 500,
        "requestBytes": 0,
        "reason": "upstreamError",
        "rulesetVersion": 1,
        "upstreamRequestId": "up-7",
    }
    assert {name: event.get(name) for name in known} == known
    assert UUID7.fullmatch(event["id"])
    assert UUID7.fullmatch(event["requestId"])
    assert RFC3339_MS.fullmatch(event["time"])
    assert event["durationMs"] >= event["upstreamMs"] >= 0
    assert event["responseBytes"] > 0
    assert not event.get("loggedRuleIds")
    assert not event.get("transforms")
    assert not event.get("parentRequestId")


def test_seq_counts_without_a_gap(reported: FakeControlPlane) -> None:
    """A proxy instance numbers the events of each organisation without a gap, in the member `seq`."""
    assert sorted(reported.seqs("org-1")) == [1, 2, 3, 4, 5, 6]


def test_reason_is_one_of_a_documented_list(reported: FakeControlPlane) -> None:
    """The member `reason` of an audit event contains one code from a documented, closed list."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text("utf-8")
    documented = set(re.findall(r"^### Reason (\w+)$", page, re.MULTILINE))
    assert {each["reason"] for each in reported.events["org-1"]} <= documented


def test_a_proxy_asks_with_the_etag_that_it_was_given(reported: FakeControlPlane) -> None:
    """The proxy repeats the last `ETag` in `If-None-Match`, so the control plane may respond with 304."""
    tags = [each.value("If-None-Match") for each in reported.sync_requests]
    assert tags[0] == ""
    assert len(set(tags[1:])) == 1
    assert tags[-1].startswith('"')


def test_rules_of_another_author_or_an_older_time_are_never_in_force(
    scripted: Scripted, reported: FakeControlPlane
) -> None:
    """A proxy applies rules only if its control plane signed them in response to the proxy's own request.

    The proxy keeps the highest `generatedAt` on disk and refuses older rules, also across restarts.
    """
    control = scripted.control

    def syncs(count: int = 2) -> None:
        wanted = len(control.sync_requests) + count
        until(lambda: len(control.sync_requests) >= wanted)

    newer = rules("/v1.0/groups", "2026-11-22T00:00:00.000Z")
    spoiled: tuple[Callable[[str], str], ...] = (lambda _: "0" * 64, str.upper, lambda report: report[:-1])
    with scripted.running():
        until(scripted.ready)
        assert (scripted.ask("/v1.0/users"), scripted.ask("/v1.0/groups")) == (200, 403)
        control.sync_body = newer
        control.sign_responses = False
        syncs()
        control.sign_responses = True
        for spoil in spoiled:
            control.spoil_signature = spoil
            syncs(1)
        assert (scripted.ask("/v1.0/users"), scripted.ask("/v1.0/groups")) == (200, 403)
        control.spoil_signature = lambda report: report
        until(lambda: scripted.ask("/v1.0/groups") == 200)
        control.sync_body = rules("/v1.0/users", "2026-11-21T23:59:59.999Z")
        syncs()
        assert (scripted.ask("/v1.0/users"), scripted.ask("/v1.0/groups")) == (403, 200)
    with scripted.running():
        syncs()
        until(scripted.ready)
        assert (scripted.ask("/v1.0/users"), scripted.ask("/v1.0/groups")) == (403, 200)
    seqs = control.seqs("org-1")
    assert sorted(seqs) == list(range(1, len(seqs) + 1))


def test_past_max_staleness_traffic_is_refused_with_503(
    scripted: Scripted, reported: FakeControlPlane
) -> None:
    """The proxy refuses traffic with 503 `notReady` after `MaxStalenessSeconds` without a good sync.

    Until `MaxStalenessSeconds` have passed, or if `MaxStalenessSeconds` is not set, the last good rules
    apply.
    """
    control = scripted.control
    control.sync_body = rules("/v1.0/users", "2026-11-23T00:00:00.000Z")
    with scripted.running(RuleSync__MaxStalenessSeconds="2"):
        until(scripted.ready)
        until(lambda: scripted.ask("/v1.0/users") == 200)
        control.sync_script.extend([error(401, "timestampOutOfRange")] * 500)
        until(lambda: scripted.token_status()[0] != 200)
        status, report = scripted.token_status()
        assert (status, report["error"]["code"]) == (503, "notReady")
        assert send(scripted.admin, "GET", "/readyz").status == 503
        assert scripted.process is not None
        assert "control plane responded with 401 timestampOutOfRange" in scripted.process.output
        control.sync_script.clear()
        until(lambda: scripted.token_status()[0] == 200)
    control.sync_script.extend([Response(503)] * 500)
    with scripted.running():
        until(scripted.ready)
        assert scripted.ask("/v1.0/users") == 200
    control.sync_script.clear()


# 5. Rulesets, over HTTP through the whole system

TODAY = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[time.gmtime().tm_wday]
TOMORROW = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(time.gmtime().tm_wday + 1) % 7]
OTHER_DAYS = ", ".join(
    day for day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun") if day not in (TODAY, TOMORROW)
)
RULES = f"""\
version: 1
name: rules
default: allow
rules:
  - {{id: get-only, match: {{methods: [GET], path: [/v1.0/m/x]}}, verdict: block}}
  - {{id: any-method, match: {{path: [/v1.0/m/y]}}, verdict: block}}
  - {{id: one-segment, match: {{path: ["/v1.0/seg/{{name}}/end"]}}, verdict: block}}
  - {{id: star, match: {{path: ["/v1.0/star/*"]}}, verdict: block}}
  - {{id: rest, match: {{path: ["/v1.0/rest/**"]}}, verdict: block}}
  - {{id: param-in, match: {{path: ["/v1.0/p/{{id}}"]}},
     conditions: [{{param: id, in: [Ab1, ada@contoso.com]}}],
     verdict: block}}
  - {{id: q-equals, match: {{path: [/v1.0/q]}}, conditions: [{{query: $top, equals: 5}}], verdict: block}}
  - {{id: q-most, match: {{path: [/v1.0/q]}}, conditions: [{{query: $skip, at_most: 9}}], verdict: block}}
  - {{id: q-least, match: {{path: [/v1.0/q]}}, conditions: [{{query: min, at_least: 10}}], verdict: block}}
  - {{id: q-prefix, match: {{path: [/v1.0/q]}}, conditions: [{{query: a, prefix: begin}}], verdict: block}}
  - {{id: q-suffix, match: {{path: [/v1.0/q]}}, conditions: [{{query: a, suffix: end}}], verdict: block}}
  - {{id: q-contains, match: {{path: [/v1.0/q]}}, conditions: [{{query: a, contains: mid}}], verdict: block}}
  - {{id: q-matches, match: {{path: [/v1.0/q]}},
     conditions: [{{query: a, matches: "^[0-9]+$"}}], verdict: block}}
  - {{id: q-exists, match: {{path: [/v1.0/q]}}, conditions: [{{query: there, exists: true}}], verdict: block}}
  - {{id: q-not, match: {{path: [/v1.0/q]}}, conditions: [{{query: n, exists: true}},
     {{query: n, not_equals: ok}}],
     verdict: block}}
  - {{id: q-not-in, match: {{path: [/v1.0/q]}}, conditions: [{{query: k, exists: true}},
     {{query: k, not_in: [a, b]}}],
     verdict: block}}
  - {{id: header, match: {{path: [/v1.0/h]}}, conditions: [{{header: ConsistencyLevel, equals: eventual}}],
     verdict: block}}
  - {{id: body, match: {{methods: [POST], path: [/v1.0/b]}},
     conditions: [{{body: to.mail, suffix: "@evil.example"}}],
     verdict: block}}
  - {{id: from-here, match: {{path: [/v1.0/ip/here]}}, ip: {{in: [127.0.0.0/8]}}, verdict: block}}
  - {{id: from-there, match: {{path: [/v1.0/ip/there]}}, ip: {{in: [10.0.0.0/8, "2001:db8::/32"]}},
     verdict: block}}
  - {{id: not-from-there, match: {{path: [/v1.0/ip/not]}}, ip: {{not_in: [10.0.0.0/8]}}, verdict: block}}
  - {{id: these-days, match: {{path: [/v1.0/time/now]}}, time: {{days: [{TODAY}, {TOMORROW}], timezone: UTC}},
     verdict: block}}
  - {{id: those-days, match: {{path: [/v1.0/time/then]}}, time: {{days: [{OTHER_DAYS}], timezone: UTC}},
     verdict: block}}
  - {{id: all-day, match: {{path: [/v1.0/time/day]}},
     time: {{from: "00:00", to: "24:00", timezone: Europe/Oslo}},
     verdict: block}}
  - {{id: first, match: {{path: [/v1.0/order]}}, verdict: allow}}
  - {{id: second, match: {{path: [/v1.0/order]}}, verdict: block}}
  - {{id: note-1, match: {{path: ["/v1.0/noted/**"]}}, verdict: log_only}}
  - {{id: note-2, match: {{path: [/v1.0/noted/more, /v1.0/noted/stop]}}, verdict: log_only}}
  - {{id: stop, match: {{path: [/v1.0/noted/stop]}}, verdict: block}}
  - {{id: r-status, when: response, match: {{path: [/v1.0/r/status]}},
     conditions: [{{status: 404}}], verdict: block}}
  - {{id: r-header, when: response, match: {{path: [/v1.0/r/header]}},
     conditions: [{{response_header: X-Class, equals: secret}}], verdict: block}}
  - {{id: r-property, when: response, match: {{path: [/v1.0/r/property]}},
     conditions: [{{property: label, equals: secret}}], verdict: block}}
  - {{id: united, match: {{path: [/v1.0/t/strip]}},
     verdict: filter, transforms: {{strip_properties: [a, b.c]}}}}
  - {{id: r-united, when: response, match: {{path: [/v1.0/t/strip]}}, verdict: filter,
     transforms: {{strip_properties: [D]}}}}
  - {{id: both, match: {{path: [/v1.0/t/allow]}}, verdict: filter, transforms: {{allow_properties: [a, b]}}}}
  - {{id: r-both, when: response, match: {{path: [/v1.0/t/allow]}}, verdict: filter,
     transforms: {{allow_properties: [b, c]}}}}
  - {{id: hide, match: {{path: ["/v1.0/hidden/{{id}}"]}}, verdict: filter,
     transforms: {{strip_properties: [phone, photo]}}}}
"""
STRICT = "version: 1\nname: strict\nrules:\n  - {id: log, match: {path: [/v1.0/x]}, verdict: log_only}\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with whole_system(tmp_path_factory.mktemp("rules"), {"rules": RULES, "strict": STRICT}) as live:
        yield live
        for child in live.system.children:
            assert "Traceback" not in child.log.read_text("utf-8")


def evaluated(
    live: Live, target: str, method: str = "GET", fields: tuple[tuple[str, str], ...] = (), body: bytes = b""
) -> str:
    """Return the id of the rule that blocked, `passed` if the upstream responded, or the error code."""
    reply = live.ask("rules", method, target, fields, body)
    if reply.status == 403:
        return str(reply.error["ruleId"])
    if reply.status >= 400 and str(reply.error["message"]).startswith("Graphward"):
        return str(reply.error["code"])
    return "passed"


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("/v1.0/seg/x/end", "one-segment"),
        ("/v1.0/seg/x/y/end", "passed"),
        ("/v1.0/seg/end", "passed"),
        ("/v1.0/star/x", "star"),
        ("/v1.0/star/x/y", "passed"),
        ("/v1.0/star", "passed"),
        ("/v1.0/rest", "rest"),
        ("/v1.0/rest/x", "rest"),
        ("/v1.0/rest/x/y/z", "rest"),
        ("/v1.0/restless", "passed"),
        ("/beta/rest/x", "passed"),
    ],
)
def test_patterns(live: Live, target: str, verdict: str) -> None:
    """A path pattern has `{name}` or `*` for one segment, and `**` for all remaining segments, if any."""
    assert evaluated(live, target) == verdict


def test_methods_are_optional(live: Live) -> None:
    """The member `methods` of a rule is optional. Without `methods`, the rule applies to any HTTP method."""
    assert evaluated(live, "/v1.0/m/x") == "get-only"
    assert evaluated(live, "/v1.0/m/x", "DELETE") == "passed"
    for method in ("GET", "POST", "DELETE"):
        assert evaluated(live, "/v1.0/m/y", method) == "any-method"


@pytest.mark.parametrize(
    ("query", "verdict"),
    [
        ("$top=5", "q-equals"),
        ("%24top=5", "q-equals"),
        ("$top=50", "passed"),
        ("$skip=9", "q-most"),
        ("$skip=10", "passed"),
        ("min=10", "q-least"),
        ("min=9", "passed"),
        ("a=beginning", "q-prefix"),
        ("a=the-end", "q-suffix"),
        ("a=amidst", "q-contains"),
        ("a=123", "q-matches"),
        ("a=x123", "passed"),
        ("there", "q-exists"),
        ("n=other", "q-not"),
        ("n=ok", "passed"),
        ("k=c", "q-not-in"),
        ("k=a", "passed"),
        ("", "passed"),
    ],
)
def test_operators(live: Live, query: str, verdict: str) -> None:
    """Test that each operator of a condition compares as the contract says.

    The operators are equals, not_equals, in, not_in, prefix, suffix, contains, matches, at_least, at_most and
    exists.
    """
    assert evaluated(live, f"/v1.0/q?{query}") == verdict


def test_sources_of_a_request(live: Live) -> None:
    """The sources of a condition are param, query, header and body.

    The source `body` of a condition is the path of a JSON property in the request body.
    """
    assert evaluated(live, "/v1.0/p/Ab1") == "param-in"
    assert evaluated(live, "/v1.0/p/ab1") == "passed"  # ids compare exactly
    assert evaluated(live, "/v1.0/p('ada%40contoso.com')") == "param-in"
    assert evaluated(live, "/v1.0/h", fields=(("consistencylevel", "eventual"),)) == "header"
    assert evaluated(live, "/v1.0/h") == "passed"
    for mail, verdict in (("x@evil.example", "body"), ("x@good.example", "passed")):
        sent = json.dumps({"to": [{"mail": "y@good.example"}, {"mail": mail}]}).encode()
        assert evaluated(live, "/v1.0/b", "POST", (JSON,), sent) == verdict


def test_sources_of_a_response(live: Live) -> None:
    """A condition of a response rule also has the sources status, response_header and property."""
    assert evaluated(live, "/v1.0/r/status") == "r-status"
    live.upstream_says("/v1.0/r/status", b"{}", [JSON, ("request-id", "r")])
    assert evaluated(live, "/v1.0/r/status") == "passed"
    for value, verdict in (("secret", "r-header"), ("plain", "passed")):
        live.upstream_says("/v1.0/r/header", b"{}", [JSON, ("x-class", value)])
        assert evaluated(live, "/v1.0/r/header") == verdict
    for value, verdict in (("secret", "r-property"), ("plain", "passed")):
        body = json.dumps({"value": [{"label": "plain"}, {"label": value}]}).encode()
        live.upstream_says("/v1.0/r/property", body)
        assert evaluated(live, "/v1.0/r/property") == verdict


def test_a_rule_whose_gates_do_not_hold_does_not_match(live: Live) -> None:
    """A rule does not match a request if the rule's gates or conditions do not hold."""
    assert evaluated(live, "/v1.0/ip/here") == "from-here"
    assert evaluated(live, "/v1.0/ip/there") == "passed"
    assert evaluated(live, "/v1.0/ip/not") == "not-from-there"
    assert evaluated(live, "/v1.0/ip/there", fields=(("X-Forwarded-For", "10.1.2.3"),)) == "passed"
    assert evaluated(live, "/v1.0/time/now") == "these-days"
    assert evaluated(live, "/v1.0/time/then") == "passed"
    assert evaluated(live, "/v1.0/time/day") == "all-day"


def test_rules_are_tried_in_file_order_and_log_only_goes_on(live: Live) -> None:
    """The first matching rule with the verdict allow, filter or block decides the request.

    If a `log_only` rule matches, the event lists its id in `loggedRuleIds`, and the proxy evaluates the next
    rules. If only `log_only` rules match and the default is `allow`, the event has the verdict log_only and
    the first matching rule's id.
    """
    ids = [f"order-{number}-{os.getpid()}" for number in range(5)]
    targets = ("/v1.0/order", "/v1.0/noted/one", "/v1.0/noted/more", "/v1.0/noted/stop", "/v1.0/unlisted")
    for target, request_id in zip(targets, ids, strict=True):
        live.ask("rules", "GET", target, [("client-request-id", request_id)])
    strict = f"order-strict-{os.getpid()}"
    assert live.ask("strict", "GET", "/v1.0/x", [("client-request-id", strict)]).status == 403
    report = [
        (event["verdict"], event["ruleId"], event.get("loggedRuleIds") or [])
        for event in live.events(*ids, strict)
    ]
    assert report == [
        ("allow", "first", []),
        ("log_only", "note-1", ["note-1"]),
        ("log_only", "note-1", ["note-1", "note-2"]),
        ("block", "stop", ["note-1", "note-2"]),
        ("allow", "default", []),
        ("block", "default", ["log"]),
    ]


def test_transforms_of_request_and_response_rules_combine(live: Live) -> None:
    """Filters of request and response rules are combined: strip lists are merged, allow lists intersect."""
    item = b'{"A": 1, "a@odata.type": "x", "b": {"c": 2, "e": 3}, "d": 4, "f": 5}'
    body = b'{"value": [' + item + b'], "@odata.count": 1}'
    live.upstream_says("/v1.0/t/strip", body)
    assert live.ask("rules", "GET", "/v1.0/t/strip").json == {
        "value": [{"b": {"e": 3}, "f": 5}],
        "@odata.count": 1,
    }
    live.upstream_says("/v1.0/t/allow", b'{"@odata.context": "x", "a": 1, "b": 2, "c": 3}')
    assert live.ask("rules", "GET", "/v1.0/t/allow").json == {"@odata.context": "x", "b": 2}


def test_a_transform_acts_on_2xx_responses(live: Live) -> None:
    """A transform of a rule changes only JSON responses with a 2xx status."""
    live.upstream_says("/v1.0/t/strip", b'{"error": {"code": "x"}, "d": 4}', [JSON, ("request-id", "r")], 404)
    reply = live.ask("rules", "GET", "/v1.0/t/strip")
    assert (reply.status, reply.body) == (404, b'{"error": {"code": "x"}, "d": 4}')


@pytest.mark.parametrize(
    "path",
    ["phone", "PHONE", "phone/$value", "%70hone", "photo", "photo/$value", "microsoft.graph.user/phone"],
)
def test_a_path_that_names_a_hidden_property_is_blocked(live: Live, path: str) -> None:
    """A rule that hides a property blocks each request whose path names this property.

    If a rule hides a property, it blocks the path of this property with or without `/$value`.
    """
    assert evaluated(live, f"/v1.0/hidden/ada/{path}") == "hide"


@pytest.mark.parametrize(
    "spelling",
    [
        "/v1.0/REST/x",
        "/V1.0/rest/x",
        "/v1.0/%72est/x",
        "/v1.0/%2572est/x",
        "/v1.0//rest//x",
        "/v1.0/./rest/x",
        "/v1.0/other/../rest/x",
        "/v1.0/other/%2e%2e/rest/x",
        "/v1.0/rest('x')",
        "/v1.0/rest/microsoft.graph.user/x",
        "/v1.0/rest/delta()",
        "/v1.0/rest/",
        "/v1.0/rest?x=/v1.0/open",
        "//v1.0/rest/x",
    ],
)
def test_no_spelling_changes_a_verdict(live: Live, spelling: str) -> None:
    """Every spelling of a path gets the same verdict.

    The spellings use percent-encoding, dot segments, doubled slashes, letter case, OData key forms, type
    casts and empty parentheses.
    """
    assert evaluated(live, spelling) == "rest"


def test_batch_parts_are_evaluated_as_if_they_came_alone(live: Live) -> None:
    """A sub-request of a `$batch` gets the same verdict as the same request outside a batch."""
    parts = [
        {"id": "1", "method": "GET", "url": "/rest/x"},
        {"id": "2", "method": "GET", "url": "/users/ada@contoso.com"},
        {"id": "3", "method": "GET", "url": "/REST//x"},
    ]
    sent = json.dumps({"requests": parts}).encode()
    request_id = f"batch-{os.getpid()}"
    reply = live.ask("rules", "POST", "/v1.0/$batch", [JSON, ("client-request-id", request_id)], sent)
    responses = {each["id"]: each for each in reply.json["responses"]}
    assert [responses[number]["status"] for number in ("1", "2", "3")] == [403, 200, 403]
    assert responses["1"]["body"]["error"]["ruleId"] == "rest"
    (seen,) = live.seen(request_id)
    assert b"rest" not in bytes(seen.body).lower()
    (event,) = live.events(request_id)
    found = until(lambda: live.cli("audit", "search", f"parent:{event['requestId']}")["events"])
    assert sorted((each["path"].lower(), each["status"], each["verdict"]) for each in found) == [
        ("/v1.0/rest//x", 403, "block"),
        ("/v1.0/rest/x", 403, "block"),
        ("/v1.0/users/ada@contoso.com", 200, "allow"),
    ]


def test_an_encoded_slash_is_refused_only_where_it_would_change_the_verdict(live: Live) -> None:
    """An encoded slash occurs in real Graph ids.

    A path with an encoded slash gets 400 only if decoding the slash would change the verdict.
    """
    assert evaluated(live, "/v1.0/files/a%2Fb") == "passed"
    assert evaluated(live, "/v1.0/rest/a%2Fb") == "rest"
    assert evaluated(live, "/v1.0%2Frest/a") in ("badRequest", "rest")
    assert evaluated(live, "/v1.0/m%2Fy") == "badRequest"
