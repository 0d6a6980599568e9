"""The four checks that users know, as they type them, and what the edge lets through."""

from __future__ import annotations

import subprocess
from typing import Any

import kserve
import pytest

MODEL = "qwen_gguf"


def curl(*arguments: str) -> str:
    return subprocess.run(
        ["curl", "--silent", "--show-error", "--noproxy", "*", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_ready(endpoints: dict[str, Any]) -> None:
    assert curl("-i", f"{endpoints['http']}/v2/health/ready").startswith("HTTP/1.1 200 OK")


def test_models(endpoints: dict[str, Any]) -> None:
    models = kserve.call(f"{endpoints['http']}/v2/models").json()
    assert {(model["name"], model["state"]) for model in models} >= {
        (MODEL, "READY"),
        (f"{MODEL}_stream", "READY"),
    }


def test_infer_answers_in_chinese(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question = "请用中文介绍人工智能"
    body = (
        '{"inputs":[{"name":"prompt","shape":[1],"datatype":"BYTES","data":["' + question + '"]}],'
        '"outputs":[{"name":"generated_text"}]}'
    )
    text = curl(
        "-X", "POST", f"{endpoints['http']}/v2/models/{MODEL}/infer",
        "-H", "Content-Type: application/json", "-d", body,
    )  # fmt: skip
    answer = kserve.Answer(200, text.encode())
    assert [tensor["name"] for tensor in answer.json()["outputs"]] == ["generated_text"]
    assert answer.output("generated_text") == answers[question]


def test_metrics(endpoints: dict[str, Any]) -> None:
    metrics = curl(f"{endpoints['metrics']}/metrics")
    assert f'nv_inference_request_success{{model="{MODEL}"' in metrics


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/repository/index", b"{}", 404),
        ("/v2/repository/models/x/load", b"{}", 404),
        ("/v2/repository/models/qwen_gguf/unload", b"{}", 404),
        ("/v2/models/qwen_gguf/../../repository/index", b"{}", 404),
        ("/v2/models/qwen_gguf%2f..%2f..%2frepository/index", b"{}", 404),
        ("/v2/systemsharedmemory/status", None, 404),
        ("/v2/trace/setting", None, 404),
        ("/v2/logging", None, 404),
        ("/v2/models/qwen_gguf/config", None, 404),
        ("/v2/models/qwen_gguf/stats", None, 404),
        ("/v2/models/stats", None, 404),
        ("/v2/models/x/../stats", None, 404),
        ("/v2/models/qwen_gguf%0a", None, 404),
        ("/v2/models/qwen_gguf/infer%0a", b"{}", 404),
        ("/v2/models", b"{}", 405),
        ("/v2/models/qwen_gguf/infer", None, 405),
        ("/metrics", None, 404),
    ],
)
def test_the_edge_refuses_what_is_not_listed(
    endpoints: dict[str, Any], path: str, body: bytes | None, status: int
) -> None:
    # curl and not urllib: --path-as-is sends dots and percent signs as they stand.
    arguments = ["-o", "/dev/null", "-w", "%{http_code}", "--path-as-is", f"{endpoints['http']}{path}"]
    if body is not None:
        arguments += ["--data-binary", body.decode()]
    assert curl(*arguments) == str(status)


def test_the_edge_refuses_compressed_and_large_bodies(endpoints: dict[str, Any]) -> None:
    url = f"{endpoints['http']}/v2/models/{MODEL}/infer"
    compressed = kserve.call(url, b"\x1f\x8b", {"Content-Encoding": "gzip"})
    assert (compressed.status, compressed.error) == (415, "compressed requests are not accepted")
    large = kserve.call(url, b" " * (5 * 1024 * 1024))
    assert (large.status, large.error) == (413, "the request is larger than 4 MB")


def test_grpc_control_methods_are_refused(endpoints: dict[str, Any]) -> None:
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import InferenceServerException

    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        assert client.is_server_ready()
        for refused in (
            client.get_model_repository_index,
            lambda: client.load_model("x"),
            lambda: client.unload_model(MODEL),
            client.get_system_shared_memory_status,
            client.get_log_settings,
        ):
            with pytest.raises(InferenceServerException, match="not allowed here"):
                refused()
        assert client.is_model_ready(MODEL)


def test_compressed_grpc_messages_are_refused(endpoints: dict[str, Any]) -> None:
    import numpy as np
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import InferenceServerException

    prompt = grpcclient.InferInput("prompt", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"a" * 1000], dtype=np.object_))
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        with pytest.raises(InferenceServerException, match="compressed messages are not accepted"):
            client.infer(MODEL, [prompt], compression_algorithm="gzip", parameters={"max_tokens": 1})
        assert client.infer(MODEL, [prompt], parameters={"max_tokens": 1}) is not None
