"""Tests that the Kubernetes manifests are valid, restricted, and consistent with programs and settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.supervisor.supervisor import AGENT_MARGIN_SECONDS, DRAIN_MARGIN_SECONDS
from proxy.wire.release import VERSION
from tests.patience import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parent.parent
MANIFESTS: Final = ROOT / "conf" / "kubernetes"
OVERLAYS: Final = ("small", "scaled")
PROGRAMS: Final = ("proxy", "controlplane")
VERSIONS: Final = ("1.30", "1.37")  # the oldest one that the page names, and the newest one with a schema
PAGE: Final = ROOT / "docs" / "how-to" / "kubernetes.md"
DATA: Final = "/var/lib/graphward"
_TOOLS: Final = ROOT / ".venv-kubernetes" / "bin"
_UNITS: Final = {"Mi": 2**20, "Gi": 2**30}

RUN: Final = "Run by a test."
DRY_RUN: Final = "Run by a test, without a cluster (--dry-run=client)."
NOT_RUN: Final = "Not run here: "

Manifest = dict[str, Any]


def kubectl(command: str, directory: Path = ROOT) -> str:
    """Run one kubectl command, which must not need a cluster."""
    if not (_TOOLS / "kubectl").exists():
        pytest.skip("no kubectl here: ./dev setup installs it")
    environment = {"PATH": f"{_TOOLS}:{os.environ['PATH']}", "HOME": "/nonexistent"}
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@cache
def rendered(overlay: str) -> str:
    """Return the Kubernetes objects that `kubectl apply -k` would send to a cluster."""
    return kubectl(f"kubectl kustomize {MANIFESTS / overlay}")


@cache
def manifests(overlay: str) -> list[Manifest]:
    return list(yaml.safe_load_all(rendered(overlay)))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [each for each in manifests(overlay) if each["kind"] in kinds]


def workload(overlay: str, program: str) -> Manifest:
    found = of_kind(overlay, "Deployment", "StatefulSet")
    (one,) = [each for each in found if each["metadata"]["name"] == program]
    return one


def pod_of(overlay: str, program: str) -> Manifest:
    spec: Manifest = workload(overlay, program)["spec"]["template"]["spec"]
    return spec


def container_of(overlay: str, program: str) -> Manifest:
    (one,) = pod_of(overlay, program)["containers"]
    container: Manifest = one
    return container


def settings_text(overlay: str, program: str) -> str:
    (volume,) = [each for each in pod_of(overlay, program)["volumes"] if each["name"] == "settings"]
    name = volume["configMap"]["name"]  # name with the suffix of its content
    (found,) = [each for each in of_kind(overlay, "ConfigMap") if each["metadata"]["name"] == name]
    text: str = found["data"][f"{program}.toml"]
    return text


def settings_of(overlay: str, program: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(settings_text(overlay, program))


def number_of_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * _UNITS[quantity[-2:]]


def instructions(stage: str) -> dict[str, str]:
    """Return the Dockerfile instructions for a program's image: of each kind of instruction, the last one."""
    found: dict[str, str] = {}
    inside = False
    for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            inside = rest.endswith((" AS base", f" AS {stage}"))
        elif inside and name.isupper():
            found[name] = rest
    return found


each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_program = pytest.mark.parametrize("program", PROGRAMS)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_has_the_published_schema(version: str, tmp_path: Path) -> None:
    if not (_TOOLS / "kubernetes-validate").exists():
        pytest.skip("no schemas of Kubernetes here: ./dev setup installs them")
    files: list[Path] = []
    for overlay in OVERLAYS:
        files.append(tmp_path / f"{overlay}.yaml")
        files[-1].write_text(rendered(overlay), "utf-8")
    command: list[str | Path] = [
        _TOOLS / "python",
        "-m",
        "kubernetes_validate",
        "--strict",
        "-k",
        version,
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed ") + done.stderr.count(" passed ") == sum(
        len(manifests(overlay)) for overlay in OVERLAYS
    )


@each_program
@each_overlay
def test_a_pod_is_as_restricted_as_its_namespace_asks(overlay: str, program: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {each["metadata"].get("namespace", "graphward") for each in manifests(overlay)} == {"graphward"}
    pod, container = pod_of(overlay, program), container_of(overlay, program)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {kind for volume in pod["volumes"] for kind in volume} - {"name"}
    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
    assert set(container["resources"]["requests"]) >= {"cpu", "memory"}
    (account,) = [
        each
        for each in of_kind(overlay, "ServiceAccount")
        if each["metadata"]["name"] == pod["serviceAccountName"]
    ]
    assert account["automountServiceAccountToken"] is False


@each_program
@each_overlay
def test_a_pod_fits_its_image(overlay: str, program: str) -> None:
    image = instructions(program)
    pod, container = pod_of(overlay, program), container_of(overlay, program)
    security = pod["securityContext"]
    assert image["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["fsGroup"] == security["runAsGroup"]  # otherwise the program could not read its secrets
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted["data"] == image["VOLUME"] == DATA
    assert f'"{mounted["settings"]}/{program}.toml"' in image["ENTRYPOINT"]
    assert container["image"].rpartition("/")[2] == f"graphward-{program}:{VERSION}"
    assert "command" not in container
    assert "args" not in container


def _port(listen: str) -> int:
    host, _, port = listen.rpartition(":")
    assert host == "0.0.0.0", "the kubelet and other pods reach no loopback"
    return int(port)


@each_overlay
def test_ports_and_probes_are_those_of_the_settings(overlay: str) -> None:
    listens = {
        "proxy": {"https": ("Proxy", "Listen"), "admin": ("Admin", "Listen")},
        "controlplane": {
            "agents": ("ControlPlane", "Listen"),
            "console": ("Console", "Listen"),
            "metrics": ("Metrics", "Listen"),
        },
    }
    health = {"proxy": "admin", "controlplane": "agents"}
    for program, names in listens.items():
        settings, container = settings_of(overlay, program), container_of(overlay, program)
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports == {name: _port(settings[section][key]) for name, (section, key) in names.items()}
        speaks_tls = "CertFile" in settings[listens[program][health[program]][0]]
        for probe, path in [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")]:
            asked = container[f"{probe}Probe"]["httpGet"]
            assert (asked["path"], asked["port"]) == (path, health[program])
            assert asked.get("scheme", "HTTP") == ("HTTPS" if speaks_tls else "HTTP")


@each_overlay
def test_names_lead_to_each_other(overlay: str) -> None:
    labels, ports = {}, {}
    for program in PROGRAMS:
        own = workload(overlay, program)
        labels[program] = own["spec"]["template"]["metadata"]["labels"]
        assert own["spec"]["selector"]["matchLabels"] == labels[program]
        ports[program] = {each["name"] for each in container_of(overlay, program)["ports"]}
    programs = {frozenset(each.items()): program for program, each in labels.items()}
    for service in of_kind(overlay, "Service"):
        program = programs[frozenset(service["spec"]["selector"].items())]
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports[program]
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        assert frozenset(budget["spec"]["selector"]["matchLabels"].items()) in programs
    guarded = set()
    for policy in of_kind(overlay, "NetworkPolicy"):
        program = programs[frozenset(policy["spec"]["podSelector"]["matchLabels"].items())]
        guarded.add(program)
        named = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
        assert named <= ports[program]
    assert guarded == set(PROGRAMS)
    for scaler in of_kind(overlay, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        own = workload(overlay, target["name"])
        assert own["kind"] == target["kind"]
        assert "replicas" not in own["spec"], "each `kubectl apply` would undo what the autoscaler did"


@each_overlay
def test_proxies_find_the_control_plane_over_tls(overlay: str) -> None:
    base = settings_of(overlay, "proxy")["RuleSync"]["SaasBaseUrl"]
    (service,) = [each for each in of_kind(overlay, "Service") if each["metadata"]["name"] == "controlplane"]
    (port,) = service["spec"]["ports"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert base == f"https://{host}:{port['port']}"
    assert f"DNS:{host}" in PAGE.read_text("utf-8")  # the name in the certificate that the page makes


@each_overlay
def test_a_pod_has_the_time_to_drain_and_to_deliver_what_it_owes(overlay: str) -> None:
    def grace(program: str) -> float:
        pod, (command, seconds) = pod_of(overlay, program), _pre_stop(overlay, program)
        assert command == "sleep"
        return float(pod["terminationGracePeriodSeconds"]) - float(seconds)

    proxy = settings_of(overlay, "proxy")
    drained = proxy["Proxy"]["DrainSeconds"] + DRAIN_MARGIN_SECONDS
    delivered = proxy["Audit"]["DeliverAtStopSeconds"] + AGENT_MARGIN_SECONDS
    assert delivered > 60
    assert grace("proxy") >= drained + delivered
    assert grace("controlplane") >= settings_of(overlay, "controlplane")["ControlPlane"]["DrainSeconds"]


def _pre_stop(overlay: str, program: str) -> list[str]:
    command: list[str] = container_of(overlay, program)["lifecycle"]["preStop"]["exec"]["command"]
    return command


@each_overlay
def test_memory_and_disk_suffice_for_what_the_settings_allow(overlay: str) -> None:
    proxy, container = settings_of(overlay, "proxy"), container_of(overlay, "proxy")
    held = proxy["Proxy"]["Workers"] * 2 * proxy["Proxy"]["MaxHeldBytes"]
    assert number_of_bytes(container["resources"]["limits"]["memory"]) >= 2 * held
    room = 2 * proxy["Audit"]["MaxDiskBytes"]
    claims = workload(overlay, "proxy")["spec"].get("volumeClaimTemplates")
    if claims is not None:
        (claim,) = claims
        assert number_of_bytes(claim["spec"]["resources"]["requests"]["storage"]) >= room
    else:
        (data,) = [each for each in pod_of(overlay, "proxy")["volumes"] if each["name"] == "data"]
        assert number_of_bytes(data["emptyDir"]["sizeLimit"]) >= room
        resources = container["resources"]  # a pod that uses more of the node's disk is evicted
        assert number_of_bytes(resources["requests"]["ephemeral-storage"]) >= room
        assert number_of_bytes(resources["limits"]["ephemeral-storage"]) > room


def test_what_must_outlive_a_pod_lies_on_a_volume_or_nowhere() -> None:
    (claim,) = of_kind("small", "PersistentVolumeClaim")
    (data,) = [each for each in pod_of("small", "controlplane")["volumes"] if each["name"] == "data"]
    assert data == {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    own = workload("small", "controlplane")["spec"]
    assert (own["replicas"], own["strategy"]) == (1, {"type": "Recreate"})  # two pods on one file are refused
    proxies = workload("small", "proxy")
    assert proxies["kind"] == "StatefulSet"
    assert [each["metadata"]["name"] for each in proxies["spec"]["volumeClaimTemplates"]] == ["data"]
    assert "data" not in {each["name"] for each in pod_of("small", "proxy")["volumes"]}
    assert workload("scaled", "controlplane")["spec"]["replicas"] == 2
    assert "Path" not in settings_of("scaled", "controlplane")["Store"]


def _paths(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for section, keys in settings.items():
        for key, value in keys.items():
            if isinstance(value, str) and value.startswith("/"):
                yield f"{section}.{key}", value


@each_program
@each_overlay
def test_each_path_of_the_settings_is_mounted(overlay: str, program: str) -> None:
    pod, container = pod_of(overlay, program), container_of(overlay, program)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    for key, path in _paths(settings_of(overlay, program)):
        directory, _, file = path.rpartition("/")
        if directory == DATA:
            assert "readOnly" not in mounts[DATA]
            continue
        assert mounts[directory]["readOnly"] is True, key
        secret = volumes[mounts[directory]["name"]]["secret"]
        assert {each["path"] for each in secret.get("items", [{"path": file}])} == {file}
    page = PAGE.read_text("utf-8")
    for source in container.get("envFrom", ()):
        assert f"create configmap {source['configMapRef']['name']} " in page


def _secret_files(overlay: str, program: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the Kubernetes Secret that each setting names."""
    pod, container = pod_of(overlay, program), container_of(overlay, program)
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in container["volumeMounts"]}
    for _, path in _paths(settings_of(overlay, program)):
        directory, _, file = path.rpartition("/")
        if "secret" in mounts[directory]:
            yield mounts[directory]["secret"]["secretName"], file


@each_overlay
def test_no_secret_is_in_the_manifests(overlay: str) -> None:
    assert of_kind(overlay, "Secret") == []


def blocks() -> list[tuple[str, str]]:
    """Return the command blocks of the Kubernetes page, each with the comment in its first line."""
    found = re.findall(r"^```sh\n# ([^\n]*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(found) == PAGE.read_text("utf-8").count("```sh\n"), "each block says whether it was run"
    return found


@pytest.fixture(scope="module")
def pod_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that holds the files that Kubernetes mounts into both pods."""
    root = tmp_path_factory.mktemp("pod")
    made = root / "made"
    made.mkdir()
    (commands,) = [text for says, text in blocks() if says == RUN]
    subprocess.run(
        ["sh", "-ec", commands], cwd=made, capture_output=True, timeout=PATIENCE_SECONDS, check=True
    )
    secrets = {
        "graphward-proxy/enrolment-token": "gwe_" + "e" * 43,
        "graphward-proxy/token-signing-key": (made / "token-signing-key").read_text(),
        "graphward-proxy/client-secret": "a-client-secret",
        "graphward-controlplane/master-key": (made / "master-key").read_text(),
        "graphward-controlplane/store-url": "postgresql://graphward:secret@db.example/graphward?sslmode=verify-full",
        "graphward-controlplane-ca/ca.crt": (made / "ca.crt").read_text(),
    }
    for program in PROGRAMS:
        secrets[f"graphward-{program}-tls/tls.crt"] = (made / f"{program}.crt").read_text()
        secrets[f"graphward-{program}-tls/tls.key"] = (made / f"{program}.key").read_text()
    for name, content in secrets.items():
        file = root / "run" / "secrets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
        file.chmod(0o440)
    (root / "var" / "lib" / "graphward").mkdir(parents=True)
    return root


@each_program
@each_overlay
def test_the_programs_take_the_settings_as_they_are(overlay: str, program: str, pod_files: Path) -> None:
    text = settings_text(overlay, program)
    for directory in ("/run/secrets/", "/var/lib/"):
        text = text.replace(f'"{directory}', f'"{pod_files}{directory}')
    config = pod_files / f"{program}-{overlay}.toml"
    config.write_text(text, "utf-8")
    environment = {name: value for name, value in os.environ.items() if "__" not in name}
    environment |= {"AZURE_TENANT_ID": "contoso.example", "AZURE_CLIENT_ID": "a-client"}
    done = subprocess.run(
        [sys.executable, "-m", program, "--config", config, "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_each_block_of_commands_says_whether_it_was_run() -> None:
    assert all(says.startswith((RUN, DRY_RUN, NOT_RUN)) for says, _ in blocks())


def test_the_secrets_of_the_page_are_those_that_pods_mount(tmp_path: Path) -> None:
    for file in (
        *("ca.crt", "controlplane.crt", "controlplane.key", "proxy.crt", "proxy.key"),
        *(
            "master-key",
            "store-url",
            "database-ca.crt",
            "enrolment-token",
            "token-signing-key",
            "client-secret",
        ),
    ):
        (tmp_path / file).write_text("content", "utf-8")
    made: dict[str, set[str]] = {}
    for says, text in blocks():
        if says.startswith(DRY_RUN):
            commands = text.replace("\\\n", " ").splitlines()
            for command in commands:
                command, _, _ = command.partition(" #")
                printed = kubectl(f"{command} --dry-run=client --output yaml", tmp_path)
                made_now = yaml.safe_load(printed)
                if made_now["kind"] == "Secret":
                    made.setdefault(made_now["metadata"]["name"], set()).update(made_now["data"])
    mounted: dict[str, set[str]] = {}
    for overlay in OVERLAYS:
        for program in PROGRAMS:
            for name, file in _secret_files(overlay, program):
                mounted.setdefault(name, set()).add(file)
    for name, file in re.findall(r"sslrootcert=/run/secrets/([\w-]+)/([\w.-]+)", PAGE.read_text("utf-8")):
        mounted[name].add(file)  # the URL in the Secret names it, so the settings do not
    assert made == mounted


@each_overlay
def test_the_component_gives_each_proxy_a_token_for_entra(overlay: str, tmp_path: Path) -> None:
    copy = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, copy)
    with (copy / overlay / "kustomization.yaml").open("a") as file:
        file.write("components: [../workload-identity]\n")
    found = list(yaml.safe_load_all(kubectl(f"kubectl kustomize {copy / overlay}")))
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    (mount,) = [
        each for each in pods["proxy"]["containers"][0]["volumeMounts"] if each["name"] == "azure-token"
    ]
    (volume,) = [each for each in pods["proxy"]["volumes"] if each["name"] == "azure-token"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "api://AzureADTokenExchange"
    page = (ROOT / "docs/how-to/kubernetes.md").read_text("utf-8")
    assert f'TokenFile = "{mount["mountPath"]}/{source["serviceAccountToken"]["path"]}"' in page
    assert "azure-token" not in str(pods["controlplane"])
