"""The Helm chart as Helm renders it: is it what the API server, a restricted namespace and qpack-runtime take."""

import json
import platform
import re
import tarfile
import textwrap
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from qpack_packager.cli import main as qpack
from qpack_runtime.cli import main as qpack_runtime
from qpack_runtime.serve.http.gate import OPEN

if platform.machine() != "x86_64":
    pytest.skip("helm-python-sdk, which carries Helm, has no wheel for this processor", allow_module_level=True)

import helm_python as helm

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "qpack-runtime"
Values = dict[str, Any]

IMAGE: Values = {"image": {"repository": "registry.example.com/qpack-runtime"}}
DIGEST = f"sha256:{'5f' * 32}"
REFERENCE = f"registry.example.com:5000/models/qwen3:1.4.0@{DIGEST}"
CPU: Values = IMAGE | {"bundle": {"claim": "bundles", "subPath": "qwen3"}}
CUDA: Values = IMAGE | {"bundle": {"hostPath": "/srv/bundle"}, "device": "cuda", "gpu": {"runtimeClassName": "nvidia"}}
PULLED: Values = {
    "image": {"repository": "registry.example.com/qpack-runtime", "digest": DIGEST},
    "imagePullSecrets": [{"name": "registry"}],
    "bundle": {"oci": REFERENCE, "credentials": "registry", "plainHttp": True},
    "trust": {"secret": "keys", "keys": ["2026.pem", "2027.pem"], "minVersion": "1.4.0"},
    "apiKeys": {"secret": "clients"},
    "device": "cuda",
    "gpu": {"count": 2},
    "replicas": 3,
    "server": {"drain": 90, "arguments": ["--longest-wait", "0.05"]},
    "networkPolicy": {"registry": {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "port": 5000}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "podAnnotations": {"example.com/team": "edge"},
    "podLabels": {"team": "edge"},
    "priorityClassName": "edge",
}
VARIANTS = {"cpu": CPU, "cuda": CUDA, "pulled": PULLED}
variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


def render(values: Values, release: str = "edge") -> dict[str, Values]:
    """The objects of a release, by their kind."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        manifests = chart.render(values, name=release, namespace="models")
    texts = [text for name, text in manifests.items() if name.endswith(".tpl")]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one]
    assert len({one["kind"] for one in objects}) == len(objects)
    return {one["kind"]: one for one in objects}


def pod(values: Values) -> Values:
    return render(values)["Deployment"]["spec"]["template"]["spec"]


def containers(values: Values) -> Iterator[Values]:
    yield from pod(values).get("initContainers", [])
    yield from pod(values)["containers"]


@pytest.fixture(scope="module")
def api_schema() -> Callable[[str, str], Draft202012Validator]:
    """The published schema of a kind, in a version of Kubernetes; a field it doesn't know is an error."""
    published = files("kubernetes_validate") / "kubernetes-json-schema"

    def load(version: str, name: str) -> Any:
        return json.loads((published / f"v{version}.0-local-strict" / name).read_text(encoding="utf-8"))

    def validator(version: str, name: str) -> Draft202012Validator:
        registry = Resource.from_contents(load(version, "_definitions.json")) @ Registry()
        return Draft202012Validator(load(version, name), registry=registry)

    return validator


@variants
def test_helm_lints_it_without_a_warning(values: Values):
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@variants
def test_the_api_server_takes_every_object(values: Values, version: str, api_schema):
    for kind, one in render(values).items():
        group, _, api_version = one["apiVersion"].rpartition("/")
        if group != "monitoring.coreos.com":
            name = "-".join(part for part in (kind.lower(), group.partition(".")[0], api_version) if part)
            api_schema(version, f"{name}.json").validate(one)


def test_the_prometheus_operator_takes_its_objects():
    """What the operator's definitions say of the fields that are used; another name would be dropped without a word."""
    objects = render(PULLED)
    monitor, rule = objects["ServiceMonitor"], objects["PrometheusRule"]
    assert monitor["apiVersion"] == rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) <= {"jobLabel", "selector", "endpoints"}
    for endpoint in monitor["spec"]["endpoints"]:
        assert set(endpoint) <= {"port", "path", "interval", "scrapeTimeout"}
        assert endpoint["port"] in {port["name"] for port in objects["Service"]["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    for group in rule["spec"]["groups"]:
        assert set(group) <= {"name", "interval", "rules"}
        for one in group["rules"]:
            assert set(one) <= {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}


def test_its_rules_are_those_of_deploy_prometheus_and_take_its_job():
    objects = render(PULLED, "any-name")
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text(encoding="utf-8"))
    assert objects["PrometheusRule"]["spec"] == rules
    job = objects["Service"]["metadata"]["labels"][objects["ServiceMonitor"]["spec"]["jobLabel"]]
    assert job.startswith("qpack")  # as docs/monitoring.md asks for
    assert 'job=~"qpack.*"' in json.dumps(rules).replace('\\"', '"')


def test_a_packaged_chart_has_the_rules_themselves(tmp_path: Path):
    """In the repository they are a link."""
    with helm.Chart.load(CHART) as chart:
        archive = chart.save(tmp_path)
    with tarfile.open(archive) as packaged:
        rules = packaged.extractfile("qpack-runtime/files/rules.yml")
        assert rules
        assert rules.read() == (DEPLOY / "prometheus" / "rules.yml").read_bytes()


@variants
def test_a_restricted_namespace_takes_the_pod(values: Values):
    """Kubernetes' Pod Security Standards, profile "restricted"; a hostPath is what it doesn't allow."""
    spec = pod(values)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] != 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(values):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in security
        assert all("hostPort" not in port for port in container.get("ports", []))
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    allowed = {"emptyDir", "persistentVolumeClaim", "secret"} | ({"hostPath"} if values is CUDA else set())
    assert kinds <= allowed
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)


@variants
def test_no_container_can_talk_to_the_cluster(values: Values):
    assert render(values)["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod(values)["automountServiceAccountToken"] is False
    assert pod(values)["serviceAccountName"] == render(values)["ServiceAccount"]["metadata"]["name"]


@variants
def test_selectors_choose_the_pods(values: Values):
    objects = render(values)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
    if "ServiceMonitor" in objects:
        wanted = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= objects["Service"]["metadata"]["labels"].items()


@variants
def test_the_server_takes_its_arguments(values: Values):
    (server,) = pod(values)["containers"]
    parsed = qpack_runtime.commands["serve"].make_context("serve", ["/bundle", *server["args"]])
    assert parsed.params["device"] == values.get("device", "cpu")
    assert parsed.params["api_key_file"] == (Path("/keys/keys") if "apiKeys" in values else None)


@variants
def test_probes_ask_what_the_server_answers(values: Values):
    (server,) = pod(values)["containers"]
    asked = {name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startup": "/startupz",
        "readiness": "/readyz",
        "liveness": "/livez",
    }
    assert {probe["path"] for probe in asked.values()} < OPEN  # answered without an API key
    assert {probe["port"] for probe in asked.values()} == {port["name"] for port in server["ports"]}


@variants
def test_answers_have_the_time_to_end(values: Values):
    (server,) = pod(values)["containers"]
    waits = server["lifecycle"]["preStop"]["sleep"]["seconds"] + values.get("server", {}).get("drain", 30)
    assert pod(values)["terminationGracePeriodSeconds"] > waits


def test_a_bundle_is_pulled_by_digest_and_checked_twice():
    (pull,) = pod(PULLED)["initContainers"]
    (server,) = pod(PULLED)["containers"]
    program, command, *arguments = pull["command"]
    assert (program, command) == ("qpack", "pull")
    assert arguments[0] == REFERENCE
    for flags in (arguments, server["args"]):
        keys = [flags[at + 1] for at, flag in enumerate(flags) if flag == "--pubkey"]
        assert keys == ["/trust/2026.pem", "/trust/2027.pem"]
        assert flags[flags.index("--min-version") + 1] == "1.4.0"
    assert "--require-signature" in server["args"]
    assert server["args"][:2] == ["--model-name", "qwen3"]
    assert server["image"] == pull["image"] == f"registry.example.com/qpack-runtime@{DIGEST}"


def test_pull_takes_its_arguments():
    (pull,) = pod(PULLED)["initContainers"]
    parsed = qpack.commands["pull"].make_context("pull", pull["command"][2:])
    assert str(parsed.params["output"]) == "/bundles/bundle"


def test_only_the_port_is_open_and_nothing_leaves():
    policy = render(CPU)["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": "http"}], "from": [{"podSelector": {}}]}]


def test_a_pod_that_pulls_reaches_the_registry_and_names():
    egress = render(PULLED)["NetworkPolicy"]["spec"]["egress"]
    assert egress[0] == {"ports": [{"protocol": "TCP", "port": 5000}], "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    assert {port["port"] for port in egress[1]["ports"]} == {53}
    assert len(egress) == 2


def test_no_pod_waits_for_a_gpu_that_its_predecessor_holds():
    assert render(CUDA)["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert render(PULLED)["Deployment"]["spec"]["strategy"] == rolling
    assert pod(PULLED)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "2Gi"}
    assert pod(CUDA)["runtimeClassName"] == "nvidia"
    assert "nvidia" not in json.dumps(render(CPU))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "/image/repository"),
        (IMAGE, "/bundle"),
        (CPU | {"replica": 2}, "additional properties 'replica' not allowed"),
        (IMAGE | {"bundle": {"oci": "registry.example.com/models/qwen3:1.4.0"}}, "/bundle/oci"),
        (IMAGE | {"bundle": {"oci": f"qwen3@{DIGEST}"}}, "/bundle/oci"),
        (IMAGE | {"bundle": {"oci": REFERENCE, "claim": "bundles"}}, "/bundle"),
        (IMAGE | {"bundle": {"hostPath": "srv/bundle"}}, "/bundle/hostPath"),
        (CPU | {"device": "gpu"}, "/device"),
        (CPU | {"trust": {"secret": "keys"}}, "/trust/keys"),
        (CPU | {"trust": {"minVersion": "1.0"}}, "/trust"),
        (CPU | {"resources": {"limits": {"memory": "2 GB"}}}, "/resources/limits/memory"),
        (CPU | {"server": {"drain": "30s"}}, "/server/drain"),
    ],
)
def test_wrong_values_are_refused_by_their_place(wrong: Values, says: str):
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmValuesError, match=says.replace("/", "[/]")):
        chart.validate_schema(wrong)


def test_replicas_do_not_share_a_store():
    with pytest.raises(helm.HelmRenderError, match="one replica"):
        render(PULLED | {"bundle": {"oci": REFERENCE, "store": {"claim": "store"}}})
    volumes = {
        one["name"]: one for one in pod(IMAGE | {"bundle": {"oci": REFERENCE, "store": {"claim": "store"}}})["volumes"]
    }
    assert volumes["bundle"]["persistentVolumeClaim"] == {"claimName": "store", "readOnly": False}


def test_the_values_in_the_docs_are_taken():
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) == 2
    whole, policy = (yaml.safe_load(block.replace("sha256:...", DIGEST)) for block in blocks)
    assert len(render(whole | policy)["NetworkPolicy"]["spec"]["ingress"][0]["from"]) == 3
