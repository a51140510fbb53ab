"""A temporary certificate authority and server certificates, for tests, benchmarks and the demo."""

from __future__ import annotations

import base64
import datetime
import ssl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The PEM files of one server certificate."""

    cert_file: Path
    key_file: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        context.set_alpn_protocols(["http/1.1"])
        return context


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Key and certificate of a client at the identity provider, in the two forms that a key vault stores."""

    certificate: x509.Certificate
    pem: str
    pfx: str


def client_certificate(
    name: str = "graphward-client",
    *,
    days: int = 30,
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None,
    chain: Sequence[x509.Certificate] = (),
) -> ClientCertificate:
    """Make a self-signed certificate as a key vault does, or an issued certificate with its `chain`."""
    key = key or rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificates = [each.public_bytes(serialization.Encoding.PEM) for each in (*chain, certificate)]
    pem = private + b"".join(certificates)
    pfx = pkcs12.serialize_key_and_certificates(
        name.encode(), key, certificate, list(chain), serialization.NoEncryption()
    )
    return ClientCertificate(certificate, pem.decode(), base64.b64encode(pfx).decode())


class CertificateAuthority:
    """A certificate authority that exists as long as its directory.

    Clients that trust the file `ca_file` accept the certificates of the authority.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca_file = directory / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Graphward throw-away CA")])
        certificate = self._build(self._name, self._key.public_key(), self._authority_extensions())
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def server(
        self, label: str = "server", names: tuple[str, ...] = LOCAL_NAMES, *, days: float = 30
    ) -> ServerCertificate:
        """Make a certificate for `names` with a lifetime in days, in files whose names begin with `label`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = self._build(subject, key.public_key(), self._server_extensions(names), days)
        files = ServerCertificate(self.directory / f"{label}.pem", self.directory / f"{label}.key")
        files.cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key_file.touch(mode=0o600)
        files.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _build(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
        days: float = 30,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())

    @staticmethod
    def _authority_extensions() -> list[tuple[x509.ExtensionType, bool]]:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        return [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)]

    @staticmethod
    def _server_extensions(names: tuple[str, ...]) -> list[tuple[x509.ExtensionType, bool]]:
        return [
            (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def speak_old_tls(context: ssl.SSLContext) -> None:
    """Let a TLS context agree to TLS 1.0 and 1.1 only, whatever the machine's policy is."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
