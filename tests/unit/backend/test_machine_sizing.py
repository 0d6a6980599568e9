"""Threads by affinity and quota, memory by host and cgroups, context by memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from llamacpp_backend.errors import LoadError
from llamacpp_backend.machine import available_memory, plan_cpu
from llamacpp_backend.sizing import plan_context

MIB = 2**20


@pytest.mark.parametrize(
    ("requested", "affinity", "quota", "n_threads", "passive"),
    [
        (0, 8, None, 8, False),
        (0, 8, "", 8, False),
        (0, 8, "400", 4, False),
        (0, 8, "350", 4, True),  # four threads at 350 %: one of them always waits
        (0, 8, "50", 1, True),
        (0, 8, "100", 1, False),
        (0, 2, "400", 2, False),
        (0, 2, "200", 2, False),
        (3, 8, None, 3, False),
        (3, 8, "300", 3, False),
        (4, 8, "300", 4, True),
        (4, 2, None, 4, True),  # more threads than CPUs
    ],
)
def test_threads(requested: int, affinity: int, quota: str | None, n_threads: int, passive: bool) -> None:
    plan = plan_cpu(requested, affinity, quota)
    assert (plan.n_threads, plan.passive_wait) == (n_threads, passive)


def test_reason_names_what_decided() -> None:
    assert plan_cpu(0, 8, "400").reason == "computed, 8 CPUs allowed, CPU quota 400%"
    assert plan_cpu(2, 8, None).reason == "set by n_threads, 8 CPUs allowed, CPU quota none"


@pytest.mark.parametrize("quota", ["0", "-100", "1.5", "400%", "many", " 100", "²", "١"])
def test_quota_that_is_no_number(quota: str) -> None:
    with pytest.raises(LoadError) as caught:
        plan_cpu(0, 8, quota)
    assert str(caught.value) == (
        f"TRITON_CPU_QUOTA_PERCENT is {quota!r}; allowed is an integer of 1 or more, or nothing"
    )


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 9000000 kB\nMemAvailable: 1024 kB\n"


def test_memory_unknown(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


def test_memory_of_the_host(tmp_path: Path) -> None:
    assert available_memory(write(tmp_path, {"proc/meminfo": MEMINFO})) == MIB


def test_no_limit_in_any_cgroup(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1\n",
    }
    assert available_memory(write(tmp_path, files)) == MIB


def test_tightest_cgroup_on_the_way_up_decides_and_page_cache_is_room(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable: 9000000 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "900\n",
        "sys/fs/cgroup/a/b/memory.current": "100\n",
        "sys/fs/cgroup/a/memory.max": "1000\n",
        "sys/fs/cgroup/a/memory.current": "700\n",
        "sys/fs/cgroup/a/memory.stat": "anon 500\nactive_file 30\ninactive_file 12\n",
    }
    assert available_memory(write(tmp_path, files)) == 1000 - 700 + 30 + 12


def test_cgroup_over_its_limit_has_no_room(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100\n",
        "sys/fs/cgroup/memory.current": "200\n",
    }
    assert available_memory(write(tmp_path, files)) == 0


def test_cgroup_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n1:name=systemd:/x\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n",
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000\n",
    }
    assert available_memory(write(tmp_path, files)) == 4000


def test_this_machine_has_memory() -> None:
    assert (available_memory() or 0) > MIB


@pytest.mark.parametrize(
    ("requested", "n_ctx_train", "available", "n_ctx"),
    [
        (0, 32768, None, 4096),
        (0, 2048, None, 2048),
        (0, 32768, 10_000 * MIB, 4096),
        (8192, 32768, 10_000 * MIB, 8192),
        (8192, 2048, None, 8192),
        (0, 32768, (64 + 2000) * MIB, 1792),  # 2000 fit, in steps of 256
        (0, 32768, (64 + 512) * MIB, 512),
        (0, 100, (64 + 100) * MIB, 100),
        (2000, 32768, (64 + 2000) * MIB, 2000),
    ],
)
def test_context(requested: int, n_ctx_train: int, available: int | None, n_ctx: int) -> None:
    assert plan_context(requested, n_ctx_train, MIB, available).n_ctx == n_ctx


@pytest.mark.parametrize(
    ("requested", "available"), [(2001, (64 + 2000) * MIB), (0, (64 + 511) * MIB), (0, 0), (16, 0)]
)
def test_context_that_does_not_fit(requested: int, available: int) -> None:
    with pytest.raises(LoadError, match=r"n_ctx \d+ needs \d+ MiB for the KV cache .* enough for n_ctx \d+"):
        plan_context(requested, 32768, MIB, available)


def test_reason_of_the_context() -> None:
    assert plan_context(8192, 2048, 1, None).reason == "set, MORE than the 2048 the model was trained on"
    assert plan_context(0, 2048, 1, None).reason == "computed, the model was trained on 2048"
    assert "reduced from 4096" in plan_context(0, 4096, MIB, (64 + 600) * MIB).reason


def test_model_without_kv_cache() -> None:
    assert plan_context(0, 4096, 0, 65 * MIB).n_ctx == 4096
