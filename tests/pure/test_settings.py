"""Tests of the proxy's settings: constraints between keys, the sample file, and the settings page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.config import SettingsError, describe
from proxy.config.declare import arrays, keys, sections
from proxy.config.secret_places import given_secrets
from proxy.startup.settings import Settings, StatusRange, load

SAMPLE = Path(__file__).parents[2] / "conf" / "proxy.toml"
MINIMAL = """\
[Agent]
ApiKey = "key-of-agent"
HmacSecret = "secret-of-agent"
[RuleSync]
SaasBaseUrl = "https://control.example"
[Credentials]
Provider = "static"
AccessToken = "upstream-token"
"""
FROM_ENVIRONMENT = {
    "Agent__ApiKey": "key",
    "Agent__HmacSecret": "secret",
    "AZURE_TENANT_ID": "tenant",
    "AZURE_CLIENT_ID": "client",
    "AZURE_CLIENT_SECRET": "client-secret",
}


def settings_from(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = tmp_path / "proxy.toml"
    file.write_text(text, "utf-8")
    return load(file, environ or {})


def problems(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings_from(tmp_path, text, environ)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def test_a_first_start_needs_only_its_keys_and_the_control_plane(tmp_path: Path) -> None:
    settings = settings_from(tmp_path, MINIMAL)
    assert settings.upstream.base_url == "https://graph.microsoft.com"
    assert settings.token.signing_key_file == tmp_path / "var/token-signing.key"
    assert settings.audit.local_retention_path == tmp_path / "var/audit"
    assert settings.audit.when_full == "refuse"


class TestIdentity:
    WITHOUT = MINIMAL.partition("[RuleSync]")[2]

    def agent(self, text: str, url: str = "https://control.example") -> str:
        return f"[Agent]\n{text}\n[RuleSync]{self.WITHOUT}".replace("https://control.example", url)

    def test_an_enrolment_token_takes_the_place_of_key_and_secret(self, tmp_path: Path) -> None:
        agent = settings_from(tmp_path, self.agent('EnrolmentToken = "gwe_0123456789"')).agent
        assert agent.enrols_itself
        assert agent.identity_path == tmp_path / "var/identity.json"
        both = self.agent('EnrolmentToken = "gwe_0123456789"\nApiKey = "k"\nHmacSecret = "s"')
        assert not settings_from(tmp_path, both).agent.enrols_itself

    def test_once_enrolled_the_token_can_be_taken_away(self, tmp_path: Path) -> None:
        expected = "Agent.ApiKey: missing, and required (or ApiKeyFile) without Agent.EnrolmentToken"
        assert problems(tmp_path, self.agent("")) == [f"proxy.toml:1: {expected}"]
        (tmp_path / "var").mkdir()
        (tmp_path / "var/identity.json").touch()
        assert settings_from(tmp_path, self.agent("")).agent.enrols_itself

    @pytest.mark.parametrize(("given", "missing"), [("ApiKey", "HmacSecret"), ("HmacSecret", "ApiKey")])
    def test_key_and_secret_come_together(self, tmp_path: Path, given: str, missing: str) -> None:
        text = self.agent(f'{given} = "k"\nEnrolmentToken = "gwe_0123456789"')
        (problem,) = problems(tmp_path, text)
        expected = f"Agent.{missing}: missing, and required by Agent.{given} (or {missing}File)"
        assert problem == f"proxy.toml:1: {expected}"

    def test_no_key_comes_where_others_can_read_it(self, tmp_path: Path) -> None:
        text = self.agent('EnrolmentToken = "gwe_0123456789"', "http://control.example")
        (problem,) = problems(tmp_path, text)
        assert problem.startswith("proxy.toml:4: RuleSync.SaasBaseUrl: the value must begin with https://")
        for loopback in ("http://127.0.0.1:8090", "http://localhost:8090", "http://[::1]:8090"):
            assert settings_from(tmp_path, text.replace("http://control.example", loopback))


@pytest.mark.parametrize(
    "url",
    ["", "https://control.example", "https://control.example/", "https://control.example/api/v1/agent/audit"],
)
def test_batches_go_to_the_audit_endpoint_whichever_form_is_given(tmp_path: Path, url: str) -> None:
    settings = settings_from(tmp_path, f'{MINIMAL}[Audit]\nIngestionUrl = "{url}"\n')
    assert settings.audit_url == "https://control.example/api/v1/agent/audit"


def test_statuses_as_502_by_default_leave_what_sdks_retry(tmp_path: Path) -> None:
    statuses = settings_from(tmp_path, MINIMAL).upstream.statuses_as_502
    assert statuses == frozenset(range(500, 600)) - {503, 504}


def test_statuses_as_502_can_be_single_or_ranges_or_none(tmp_path: Path) -> None:
    upstream = settings_from(tmp_path, MINIMAL + '[Upstream]\nReportAs502 = ["500", "510-511"]\n').upstream
    assert upstream.report_as_502 == (StatusRange(500, 500), StatusRange(510, 511))
    assert upstream.statuses_as_502 == {500, 510, 511}
    assert (
        settings_from(tmp_path, MINIMAL + "[Upstream]\nReportAs502 = []\n").upstream.statuses_as_502 == set()
    )


@pytest.mark.parametrize("text", ["499", "200-599", "502-500", "5xx", "500-", "600", "500 - 502", "٥٠٠"])
def test_only_server_errors_can_be_reported_as_502(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, f'{MINIMAL}[Upstream]\nReportAs502 = ["{text}"]\n')
    assert problem.startswith(
        "proxy.toml:10: Upstream.ReportAs502: the value must be a status or range within 500-599"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[Upstream]\nBaseUrl = "https://graph.example/v1.0"',
            (
                "proxy.toml:10: Upstream.BaseUrl: the value must be scheme, host and port without a path, "
                "not 'https://graph.example/v1.0'"
            ),
        ),
        (
            '[Audit]\nWhenFull = "drop"',
            "proxy.toml:10: Audit.WhenFull: the value must be one of refuse, drop-oldest, not 'drop'",
        ),
        (
            "[Audit]\nMaxDiskBytes = 16777216\n[Proxy]\nWorkers = 9",
            "proxy.toml:10: Audit.MaxDiskBytes: the value must be 18874368 or more, for 9 workers",
        ),
        (
            '[Proxy]\nTrustedProxies = ["10.0.0.1/8"]',
            (
                "proxy.toml:10: Proxy.TrustedProxies: the value must be an address or network such as "
                "10.0.0.0/8, "
                "not '10.0.0.1/8'"
            ),
        ),
        ("[Proxy]\nListen = []", "proxy.toml:10: Proxy.Listen: the value must name at least one address"),
        (
            '[Proxy]\nListen = ["127.0.0.1:9090"]',
            "proxy.toml: Admin.Listen: 127.0.0.1:9090 is given twice",
        ),
        (
            '[Proxy]\nClientCertificates = "optional"',
            (
                "proxy.toml:9: Proxy.CertFile: missing: ClientCertificates needs TLS at the proxy itself, "
                "not at a load balancer"
            ),
        ),
        (
            '[Traces]\nHeaders = "Authorization=Bearer%20s3cret,X y=s3cret"',
            "proxy.toml:10: Traces.Headers: header pair 2 must be name=value, with a name that HTTP allows",
        ),
        (
            '[Traces]\nHeaders = "Authorization=s3cret%0d%0aX:%20y"',
            (
                "proxy.toml:10: Traces.Headers: header pair 1 has a character that is not allowed in "
                "a header field"
            ),
        ),
        (
            '[Token]\nSigningKey = "k"\nSigningKeyFile = "f"',
            "proxy.toml:10: Token.SigningKey: given twice, as SigningKey and as SigningKeyFile",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, f"{MINIMAL}{text}\n") == [expected]


def test_header_fields_for_the_collector_of_traces_have_the_form_of_opentelemetry(tmp_path: Path) -> None:
    given = 'OtlpUrl = "https://collector.example"\nHeaders = "Authorization=Basic dTpw=, X-Scope = a%2Cb"'
    traces = settings_from(tmp_path, f"{MINIMAL}[Traces]\n{given}\n").traces
    assert traces.header_fields == {"Authorization": "Basic dTpw=", "X-Scope": "a,b"}


@pytest.mark.parametrize(
    ("provider", "given", "told"),
    [
        (
            "managed-identity",
            'ClientSecret = "s"',
            "Credentials.ClientSecret: has no effect, because Provider is",
        ),
        ("managed-identity", 'VaultUrl = "https://v.vault.azure.net"', "or set Token.SigningKeySecretName"),
        ("managed-identity", 'TokenFile = "t"\nSecretName = "n"', "Credentials.TokenFile: has no effect"),
        (
            "managed-identity",
            '[[Credentials.Identities]]\nName = "mail"\nApplications = ["a"]\nClientSecret = "s"',
            "Credentials.Identities.mail.ClientSecret: has no effect",
        ),
        ("managed-identity", '[Traces]\nHeaders = "a=b"', "Traces.Headers: not used"),
    ],
)
def test_what_has_no_effect_is_told_with_its_line(
    tmp_path: Path, provider: str, given: str, told: str
) -> None:
    text = MINIMAL.partition("[Credentials]")[0] + f'[Credentials]\nProvider = "{provider}"\n{given}\n'
    fallbacks = {"AZURE_CLIENT_SECRET": "of-another-program", "AZURE_FEDERATED_TOKEN_FILE": "/t"}
    settings = settings_from(tmp_path, text, {**fallbacks, "AZURE_TENANT_ID": "t"})
    assert any(told in line for line in settings.without_effect)
    number = text.splitlines().index(given.splitlines()[-1]) + 1
    assert any(line.startswith(f"{tmp_path}/proxy.toml:{number}: ") for line in settings.without_effect)
    assert len(settings.without_effect) == given.count(" = ") - 2 * given.count('Name = "mail')
    assert settings_from(tmp_path, MINIMAL, fallbacks).without_effect == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[Traces]\nOtlpUrl = "https://c:4317/v1/logs"', "Traces.OtlpUrl: does not accept spans"),
        ('AuthorityUrl = "https://login.example/t/v2.0"', "without /v2.0 and without a tenant"),
        (
            'AuthorityUrl = "https://login.example/t/oauth2/v2.0/token"',
            "must be the identity provider",
        ),
    ],
)
def test_the_address_of_another_service_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in " ".join(problems(tmp_path, MINIMAL + text + "\n"))


def test_a_certificate_and_its_key_come_together(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("PEM")
    assert problems(tmp_path, MINIMAL + '[Proxy]\nCertFile = "a.pem"\n') == [
        "proxy.toml:9: Proxy.KeyFile: missing: CertFile needs the key that belongs to it"
    ]
    assert problems(tmp_path, MINIMAL + '[Proxy]\nKeyFile = "a.pem"\n') == [
        "proxy.toml:9: Proxy.CertFile: missing: KeyFile needs the certificate that belongs to it"
    ]
    proxy = settings_from(tmp_path, MINIMAL + '[Proxy]\nCertFile = "a.pem"\nKeyFile = "a.pem"\n').proxy
    assert proxy.cert_file == tmp_path / "a.pem"


class TestProviders:
    WITHOUT = MINIMAL.partition("[Credentials]")[0]
    VAULT = """\
[Credentials]
Provider = "managed-identity-key-vault"
VaultUrl = "https://contoso.vault.azure.net"
SecretName = "graph-client"
TenantId = "t"
ClientId = "c"
"""

    def test_environment_takes_what_is_not_set_from_azure_variables(self, tmp_path: Path) -> None:
        text = self.WITHOUT + '[Credentials]\nTenantId = "t1"\n'
        environ = {name: value for name, value in FROM_ENVIRONMENT.items() if name.startswith("AZURE_")}
        credentials = settings_from(tmp_path, text, environ).credentials
        assert (credentials.tenant_id, credentials.client_id) == ("t1", "client")
        assert credentials.client_secret == "client-secret"

    def test_environment_names_each_value_that_is_missing(self, tmp_path: Path) -> None:
        report = problems(tmp_path, self.WITHOUT, {"AZURE_CLIENT_ID": "c"})
        assert report == [
            (
                "proxy.toml: Credentials.TenantId: missing, and required by Provider environment "
                "(or set AZURE_TENANT_ID)"
            ),
            (
                "proxy.toml: Credentials.ClientSecret: missing, and required by Provider environment "
                "(or set AZURE_CLIENT_SECRET)"
            ),
        ]

    def test_static_needs_its_token(self, tmp_path: Path) -> None:
        report = problems(tmp_path, self.WITHOUT + '[Credentials]\nProvider = "static"\n')
        assert report == ["proxy.toml:6: Credentials.AccessToken: missing, and required by Provider static"]

    def test_key_vault_names_each_value_that_is_missing(self, tmp_path: Path) -> None:
        text = self.WITHOUT + '[Credentials]\nProvider = "managed-identity-key-vault"\n'
        required = "missing, and required by Provider managed-identity-key-vault"
        assert problems(tmp_path, text, {"AZURE_CLIENT_ID": "c"}) == [
            f"proxy.toml:6: Credentials.VaultUrl: {required}",
            f"proxy.toml:6: Credentials.SecretName: {required}",
            f"proxy.toml:6: Credentials.TenantId: {required} (or set AZURE_TENANT_ID)",
        ]

    def test_a_signing_key_in_a_vault_needs_the_vault_and_no_other_key(self, tmp_path: Path) -> None:
        named = '[Token]\nSigningKeySecretName = "keys"\n'
        assert problems(tmp_path, MINIMAL + named) == [
            "proxy.toml:6: Credentials.VaultUrl: missing, and required by Token.SigningKeySecretName"
        ]
        assert problems(tmp_path, self.WITHOUT + self.VAULT + named, {"Token__SigningKey": "k" * 32}) == [
            "environment: Token.SigningKey: given together with SigningKeySecretName: remove one of the two"
        ]
        vault = {"Credentials__VaultUrl": "https://contoso.vault.azure.net"}
        assert settings_from(tmp_path, MINIMAL + named, vault).uses_vault
        assert not settings_from(tmp_path, MINIMAL).uses_vault

    def test_key_vault_needs_no_client_secret(self, tmp_path: Path) -> None:
        credentials = settings_from(tmp_path, self.WITHOUT + self.VAULT).credentials
        assert credentials.client_secret == ""
        assert credentials.vault_refresh_seconds == 300

    @pytest.mark.parametrize(
        ("key", "value", "report"),
        [
            ("VaultUrl", "http://contoso.vault.azure.net", "the value must be an https:// address"),
            (
                "VaultUrl",
                "https://contoso.vault.azure.net/secrets/graph",
                "the value must be scheme, host and port",
            ),
            ("SecretName", "graph/0123", "the value must be 1 to 127 letters, digits and hyphens"),
            ("SecretName", "../keys", "the value must be 1 to 127 letters, digits and hyphens"),
        ],
    )
    def test_only_a_vault_and_a_name_are_taken(
        self, tmp_path: Path, key: str, value: str, report: str
    ) -> None:
        (problem,) = problems(tmp_path, self.WITHOUT + self.VAULT, {f"Credentials__{key}": value})
        assert problem.startswith(f"environment: Credentials__{key}: {report}")


class TestContact:
    """Tests of the setting [Proxy] Contact, a text that each 403 repeats."""

    @pytest.mark.parametrize("value", ["x" * 201, "a\nb", "a\x1b[31m", "a\u2028b", "a\u202eb"])
    def test_a_text_that_is_long_or_has_control_characters_is_refused(
        self, tmp_path: Path, value: str
    ) -> None:
        (problem,) = problems(tmp_path, MINIMAL, {"Proxy__Contact": value})
        assert "Proxy__Contact: the value must be at most 200 printable characters in one line" in problem

    def test_an_address_is_kept_as_it_is(self, tmp_path: Path) -> None:
        settings = settings_from(tmp_path, MINIMAL, {"Proxy__Contact": "graph-admins@contoso.com"})
        assert settings.proxy.contact == "graph-admins@contoso.com"


class TestIdentities:
    """Tests of the setting [[Credentials.Identities]]: assignment of identities, and refused combinations."""

    MAIL = '[[Credentials.Identities]]\nName = "mail"\nAccessToken = "m"\nApplications = ["app-1", "app-2"]\n'
    FILES = '[[Credentials.Identities]]\nName = "files"\nAccessToken = "f"\nOrganisations = "org-1"\n'
    ENTRA = """\
[Credentials]
TenantId = "t"
ClientId = "c"
ClientSecret = "s"
"""
    WITHOUT = MINIMAL.partition("[Credentials]")[0]

    def test_without_any_every_application_has_the_default(self, tmp_path: Path) -> None:
        credentials = settings_from(tmp_path, MINIMAL).credentials
        assert [each.name for each in credentials.every_identity] == ["default"]
        assert credentials.every_identity[0].access_token == "upstream-token"
        assert credentials.assignments.identity_of("org-1", "app-1") == "default"

    def test_the_application_goes_before_its_organisation(self, tmp_path: Path) -> None:
        credentials = settings_from(tmp_path, MINIMAL + self.MAIL + self.FILES).credentials
        assigned = credentials.assignments
        assert assigned.names == ("default", "mail", "files")
        assert [(each.name, each.access_token) for each in credentials.every_identity] == [
            ("default", "upstream-token"),
            ("mail", "m"),
            ("files", "f"),
        ]
        assert assigned.identity_of("org-1", "app-1") == "mail"
        assert assigned.identity_of("org-2", "app-2") == "mail"
        assert assigned.identity_of("org-1", "app-3") == "files"
        assert assigned.identity_of("org-2", "app-3") == "default"

    def test_the_tenant_is_inherited_and_may_be_another(self, tmp_path: Path) -> None:
        for_mail = '[[Credentials.Identities]]\nName = "mail"\nClientId = "m"\nApplications = ["a"]\n'
        for_files = for_mail.replace("mail", "files").replace('"a"', '"b"') + 'TenantId = "other"\n'
        (tmp_path / "secret").write_text("from-a-file\n")
        text = self.WITHOUT + self.ENTRA + for_mail + 'ClientSecretFile = "secret"\n' + for_files
        environ = {"Credentials__Identities__files__ClientSecret": "from-a-variable"}
        _, mail, files = settings_from(tmp_path, text, environ).credentials.every_identity
        assert (mail.tenant_id, mail.client_id, mail.client_secret) == ("t", "m", "from-a-file")
        assert (files.tenant_id, files.client_id, files.client_secret) == ("other", "m", "from-a-variable")
        assert (
            settings_from(tmp_path, text, {**environ, "Credentials__TenantId": "elsewhere"})
            .credentials.identities[0]
            .tenant_id
            == "elsewhere"
        )

    def test_neither_client_nor_secret_is_inherited(self, tmp_path: Path) -> None:
        """The variable AZURE_CLIENT_SECRET belongs to the default identity, and never to another identity."""
        text = self.WITHOUT + '[[Credentials.Identities]]\nName = "mail"\nApplications = ["a"]\n'
        assert problems(tmp_path, text, FROM_ENVIRONMENT | {"Agent__ApiKey": "k"}) == [
            (
                "proxy.toml:6: Credentials.Identities.mail.ClientId: missing, and required by Provider "
                "environment"
            ),
            (
                "proxy.toml:6: Credentials.Identities.mail.ClientSecret: missing, and required by Provider "
                "environment"
            ),
        ]

    def test_with_a_vault_each_names_its_secret(self, tmp_path: Path) -> None:
        text = (
            self.WITHOUT
            + TestProviders.VAULT
            + ('[[Credentials.Identities]]\nName = "mail"\nClientId = "m"\nApplications = ["a"]\n')
        )
        assert problems(tmp_path, text) == [
            (
                "proxy.toml:12: Credentials.Identities.mail.SecretName: missing, and required by Provider "
                "managed-identity-key-vault"
            )
        ]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                MAIL + FILES + 'Applications = ["app-2"]\n',
                (
                    "proxy.toml:17: Credentials.Identities.files.Applications: application app-2 is also in "
                    "identity mail: remove one of the two"
                ),
            ),
            (
                MAIL + 'Organisations = ["org-1"]\n' + FILES,
                (
                    "proxy.toml:17: Credentials.Identities.files.Organisations: organisation org-1 is also "
                    "in identity mail: remove one of the two"
                ),
            ),
            (
                MAIL + '[[Credentials.Identities]]\nName = "idle"\nAccessToken = "i"\n',
                (
                    "proxy.toml:13: Credentials.Identities.idle: names no Organisations and no Applications, "
                    "so no application would use it"
                ),
            ),
            (
                MAIL.replace('"mail"', '"Default"'),
                (
                    "proxy.toml:10: Credentials.Identities.Default.Name: is the name of the identity of "
                    "[Credentials]: choose another one"
                ),
            ),
            (
                MAIL + FILES.replace("files", "mail"),
                "proxy.toml:14: Credentials.Identities.Name: 'mail' is given twice",
            ),
            (
                MAIL.replace('Name = "mail"\n', ""),
                "proxy.toml:9: Credentials.Identities.0.Name: missing, and required",
            ),
            (
                MAIL.replace('"mail"', '"e mail"'),
                (
                    "proxy.toml:10: Credentials.Identities.0.Name: the value must be a letter, then at "
                    "most 31 "
                    "letters, digits and hyphens, not 'e mail'"
                ),
            ),
            (
                MAIL + 'Aplications = "x"\n',
                (
                    "proxy.toml:13: Credentials.Identities.mail.Aplications: unknown key, "
                    "did you mean Applications?"
                ),
            ),
            (
                MAIL.replace('["app-1", "app-2"]', "[1]"),
                (
                    "proxy.toml:12: Credentials.Identities.mail.Applications: the value must be text in "
                    "quotes or a "
                    "list of them, not 1"
                ),
            ),
            (
                MAIL.replace('["app-1", "app-2"]', '[""]'),
                "proxy.toml:12: Credentials.Identities.mail.Applications: the value must not be empty",
            ),
            (
                "[Credentials.Identities]\n",
                (
                    "proxy.toml:9: Credentials.Identities: is an array of tables: "
                    "write [[Credentials.Identities]]"
                ),
            ),
            (
                'Identities = ["mail"]\n',
                (
                    "proxy.toml:9: Credentials.Identities: is an array of tables: "
                    "write [[Credentials.Identities]]"
                ),
            ),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, tmp_path: Path, text: str, expected: str) -> None:
        assert problems(tmp_path, MINIMAL + text) == [expected]

    def test_every_problem_is_told_at_once(self, tmp_path: Path) -> None:
        text = MINIMAL.replace('"static"', '"environment"') + self.MAIL + self.FILES + 'Nme = ""\n'
        report = problems(tmp_path, text)
        assert len(report) == 3 + 2 * 3 + 1
        assert (
            report[-1] == "proxy.toml:17: Credentials.Identities.files.Nme: unknown key, did you mean Name?"
        )
        report = problems(tmp_path, text.replace('Nme = ""', 'Applications = "app-1"'))
        assert len(report) == 3 + 2 * 3 + 1

    def test_what_is_wrong_within_another_section_hides_nothing(self, tmp_path: Path) -> None:
        text = MINIMAL.replace('"static"', '"environment"').replace("ApiKey", "ApiKy")
        report = [each.split(": ")[1] for each in problems(tmp_path, text)]
        assert {"Agent.ApiKey", "Agent.ApiKy", "Credentials.TenantId"} <= set(report)

    @pytest.mark.parametrize(
        "variable",
        [
            "Credentials__Identities",
            "Credentials__Identities__0__AccessToken",
            "Credentials__Identities__files__AccessToken",
            "Credentials__Identities__mail__Name",
            "Credentials__Identities__mail__AccesToken",
        ],
    )
    def test_a_variable_that_names_no_key_of_a_table_is_refused(self, tmp_path: Path, variable: str) -> None:
        (problem,) = problems(tmp_path, MINIMAL + self.MAIL, {variable: "x"})
        assert problem.startswith(f"environment: {variable}: unknown setting, ")

    def test_inline_tables_are_taken_too(self, tmp_path: Path) -> None:
        inline = (
            'Identities = [\n{Name = "mail", AccessToken = "m", Applications = "a"},\n{Name = "files"}]\n'
        )
        assert problems(tmp_path, MINIMAL + inline)[0].startswith(
            "proxy.toml:11: Credentials.Identities.files: "
        )
        whole = inline.replace('"files"', '"files", AccessToken = "f", Organisations = "o"')
        assert settings_from(tmp_path, MINIMAL + whole).credentials.assignments.by_organisation == {
            "o": "files"
        }

    def test_what_check_prints_shows_each_and_no_secret(self, tmp_path: Path) -> None:
        report = describe(settings_from(tmp_path, MINIMAL + self.MAIL.replace('"m"', '"s3cr3t"')))
        assert '[[Credentials.Identities]]\nName = "mail"\n' in report
        assert 'Applications = ["app-1", "app-2"]' in report
        assert "s3cr3t" not in report
        assert settings_from(tmp_path, report.replace('SigningKey = ""\n', "")).credentials.identities


def test_the_identity_provider_is_trusted_like_the_upstream_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("PEM")
    (tmp_path / "b.pem").write_text("PEM")
    upstream = MINIMAL + '[Upstream]\nCaFile = "a.pem"\n'
    assert settings_from(tmp_path, upstream).identity_ca_file == tmp_path / "a.pem"
    own = settings_from(tmp_path, upstream, {"Credentials__CaFile": "b.pem"})
    assert own.identity_ca_file == tmp_path / "b.pem"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "gone.toml", {})
    assert caught.value.problems == (f"{tmp_path}/gone.toml: can't be read: No such file or directory",)
    (tmp_path / "proxy.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="the text is UTF-16: save it as UTF-8"):
        load(tmp_path / "proxy.toml", {})


def test_the_sample_loads_as_it_stands() -> None:
    settings = load(SAMPLE, FROM_ENVIRONMENT)
    assert describe(settings).count("********") == 3
    assert settings.rule_sync.cache_path == SAMPLE.parents[1] / "var/proxy/snapshot.json"


def test_the_key_vault_sample_needs_only_the_agents_keys() -> None:
    agent = {name: value for name, value in FROM_ENVIRONMENT.items() if name.startswith("Agent__")}
    settings = load(SAMPLE.parent / "proxy-key-vault.toml", agent)
    assert settings.credentials.provider == "managed-identity-key-vault"
    assert describe(settings).count("********") == 2
    kept = (settings.proxy.kill_file, settings.rule_sync.cache_path, settings.audit.local_retention_path)
    assert {str(path.parent) for path in kept} == {"/var/lib/graphward-proxy"}  # the unit's StateDirectory


def test_the_sample_speaks_of_every_section() -> None:
    text = SAMPLE.read_text("utf-8")
    assert [f"[{section}]" in text for section in sections(Settings)] == [True] * len(sections(Settings))


def test_keys_that_the_sample_comments_out_exist() -> None:
    known = {section: keys(section, cls) for section, (_, cls) in sections(Settings).items()}
    for section, (_, cls) in sections(Settings).items():
        known |= {str(array): keys(str(array), array.classes[0]) for array in arrays(section, cls).values()}
    section = ""
    for line in SAMPLE.read_text("utf-8").splitlines():
        if line.startswith(("[", "# [[")):
            section = line.strip("# []")
        name, equals, _ = line.removeprefix("# ").partition(" = ")
        if section and equals:
            assert name in known[section] or name.removesuffix("File") in known[section], line


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    """A byte order mark is skipped in a secret's file and variable, as in the settings file itself."""
    (tmp_path / "hmac").write_bytes(b"\xef\xbb\xbfgwh_0123456789abcdef\r\n")
    text = MINIMAL.replace('HmacSecret = "secret-of-agent"', 'HmacSecretFile = "hmac"')
    (tmp_path / "proxy.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    settings = load(tmp_path / "proxy.toml", {"Agent__ApiKey": "\ufeffgwk_0123456789abcdef"})
    assert (settings.agent.hmac_secret, settings.agent.api_key) == (
        "gwh_0123456789abcdef",
        "gwk_0123456789abcdef",
    )


@pytest.mark.parametrize("given", [" {}", '"{}"', "{}\t"])
def test_what_stands_around_a_minted_secret_stops_the_start(tmp_path: Path, given: str) -> None:
    given = given.format("gwh_0123456789abcdef")
    (tmp_path / "hmac").write_text(given + "\n")
    text = MINIMAL.replace('HmacSecret = "secret-of-agent"', 'HmacSecretFile = "hmac"')
    (tmp_path / "proxy.toml").write_text(text)
    for environ in ({}, {"Agent__HmacSecret": given}):
        with pytest.raises(SettingsError, match=r"HmacSecret: the value has .* around the secret") as caught:
            load(tmp_path / "proxy.toml", environ)
        assert "0123456789abcdef" not in str(caught.value)


def test_a_secret_file_in_utf16_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "hmac").write_bytes("gwh_0123456789abcdef".encode("utf-16"))
    text = MINIMAL.replace('HmacSecret = "secret-of-agent"', 'HmacSecretFile = "hmac"')
    (tmp_path / "proxy.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"HmacSecretFile: can't read .*hmac: the text is UTF-16"):
        load(tmp_path / "proxy.toml", {})


@pytest.mark.parametrize(
    ("base", "authority", "scope"),
    [
        (
            "https://graph.microsoft.com",
            "https://login.microsoftonline.com",
            "https://graph.microsoft.com/.default",
        ),
        (
            "https://graph.microsoft.us",
            "https://login.microsoftonline.us",
            "https://graph.microsoft.us/.default",
        ),
        (
            "https://dod-graph.microsoft.us:443",
            "https://login.microsoftonline.us",
            "https://dod-graph.microsoft.us/.default",
        ),
        (
            "https://microsoftgraph.chinacloudapi.cn",
            "https://login.chinacloudapi.cn",
            "https://microsoftgraph.chinacloudapi.cn/.default",
        ),
        ("https://api.example:8443", "https://login.microsoftonline.com", "https://api.example/.default"),
        (
            "https://GRAPH.microsoft.us.",
            "https://login.microsoftonline.us",
            "https://graph.microsoft.us/.default",
        ),
        ("http://[::1]:8080", "https://login.microsoftonline.com", "https://[::1]/.default"),
    ],
)
def test_scope_and_authority_follow_the_upstream(
    tmp_path: Path, base: str, authority: str, scope: str
) -> None:
    settings = settings_from(tmp_path, f'{MINIMAL}[Upstream]\nBaseUrl = "{base}"\n')
    assert (settings.credentials.authority_url, settings.credentials.scope) == (authority, scope)
    assert f'Scope = "{scope}"' in describe(settings)
    given = MINIMAL + 'Scope = "api://mine/.default"\nAuthorityUrl = "https://sts.example"\n'
    settings = settings_from(tmp_path, f'{given}[Upstream]\nBaseUrl = "{base}"\n')
    assert settings.credentials.scope == "api://mine/.default"
    assert settings.credentials.authority_url == "https://sts.example"


CREDENTIALS = """\
[Agent]
ApiKey = "k"
HmacSecret = "s"
[RuleSync]
SaasBaseUrl = "https://control.example"
[Credentials]
"""


@pytest.mark.parametrize(
    ("lines", "environ", "expected"),
    [
        ('Provider = "managed-identity"', {}, []),
        ('Provider = "managed-identity"\nTenantId = "t"\nClientId = "c"', {}, []),
        (
            'Provider = "managed-identity"',
            {"AZURE_CLIENT_ID": "c"},
            ["Credentials.TenantId: missing: ClientId"],
        ),
        (
            'Provider = "workload-identity"',
            {},
            [
                "Credentials.TenantId: missing, and required by Provider workload-identity",
                "Credentials.ClientId: missing, and required by Provider workload-identity",
                "Credentials.TokenFile: missing, and required by Provider workload-identity (or set AZ",
            ],
        ),
        (
            'Provider = "workload-identity"',
            {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_FEDERATED_TOKEN_FILE": "/no/such/file"},
            [],
        ),
        (
            'Provider = "managed-identity"\nTenantId = "my tenant"\nClientId = "c"',
            {},
            ["Credentials.TenantId: the value must be letters, digits, dots and hyphens, not 'my tenant'"],
        ),
    ],
)
def test_a_platform_s_identity_needs_what_its_provider_asks_for(
    tmp_path: Path, lines: str, environ: dict[str, str], expected: list[str]
) -> None:
    if not expected:
        settings_from(tmp_path, CREDENTIALS + lines, environ)
        return
    found = problems(tmp_path, CREDENTIALS + lines, environ)
    assert len(found) == len(expected)
    for problem, start in zip(found, expected, strict=True):
        assert start in problem


def test_the_identity_provider_is_asked_unless_the_platform_gives_every_token(tmp_path: Path) -> None:
    itself = 'Provider = "managed-identity"\n'
    assert not settings_from(tmp_path, CREDENTIALS + itself).uses_identity_provider
    other = '[[Credentials.Identities]]\nName = "a"\nTenantId = "t"\nClientId = "c"\nApplications = ["x"]\n'
    assert settings_from(tmp_path, CREDENTIALS + itself + other).uses_identity_provider
    static = 'Provider = "static"\nAccessToken = "t"\n'
    assert not settings_from(tmp_path, CREDENTIALS + static).uses_identity_provider


def test_a_token_of_another_cloud_is_an_error_before_the_start(tmp_path: Path) -> None:
    text = """\
[RuleSync]
SaasBaseUrl = "https://control.example"
[Upstream]
BaseUrl = "https://graph.microsoft.us"
[Credentials]
AuthorityUrl = "https://login.microsoftonline.com"
Scope = "https://graph.microsoft.com/.default"
"""
    assert problems(tmp_path, text, FROM_ENVIRONMENT) == [
        (
            "proxy.toml:6: Credentials.AuthorityUrl: login.microsoftonline.com issues no tokens for "
            "graph.microsoft.us: use https://login.microsoftonline.us"
        ),
        (
            "proxy.toml:7: Credentials.Scope: https://graph.microsoft.com/.default is not a scope of "
            "graph.microsoft.us: use https://graph.microsoft.us/.default"
        ),
    ]


def test_the_files_of_secrets_are_known_wherever_they_are_named(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text(
        '[Agent]\nApiKeyFile = "key"\nHmacSecret = "inline"\n'
        '[[Credentials.Identities]]\nName = "mail"\nClientSecretFile = "/run/mail"\n'
    )
    found = given_secrets(Settings, config, {"Agent:ApiKeyFile": "of-environment"})
    assert set(found.files) == {tmp_path / "of-environment", Path("/run/mail")}
    assert found.inline == ("Agent.HmacSecret",)
