"""Threads by affinity and quota, memory by host and cgroups, context by memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from llamacpp_backend.errors import LoadError
from llamacpp_backend.llama.file import MemoryNeeds
from llamacpp_backend.machine import available_memory, plan_cpu
from llamacpp_backend.sizing import ContextPlan, plan_context

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


def needs(per_token: int = MIB, per_slot: int = 0, per_view_token: int = 0) -> MemoryNeeds:
    return MemoryNeeds(100 * MIB, per_token, per_slot, per_view_token, fixed=36 * MIB)


def plan(n_ctx: int, n_parallel: int, room: int | None, *, unified: bool = False, **kinds: int) -> ContextPlan:
    """`room`: MiB beside weights (100), buffers (36) and reserve (64); with the usual needs as many tokens."""
    return plan_context(
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        kv_unified=unified,
        n_threads=kinds.pop("n_threads", 4),
        n_ctx_train=kinds.pop("n_ctx_train", 32768),
        needs=needs(**kinds),
        available=None if room is None else (200 + room) * MIB,
    )


@pytest.mark.parametrize(
    ("n_ctx", "n_parallel", "room", "expected"),
    [
        (0, 0, None, (4096, 8)),
        (0, 0, 8 * 4096, (4096, 8)),
        (0, 0, 8 * 4096 - 1, (4096, 7)),  # fewer answers at once before shorter ones
        (0, 0, 4096, (4096, 1)),
        (0, 0, 4095, (3840, 1)),
        (0, 0, 512, (512, 1)),
        (0, 2, 8191, (3840, 2)),
        (2000, 0, 3 * 2048, (2000, 3)),  # llama.cpp rounds 2000 cells up to 2048
        (2000, 2, 2 * 2048, (2000, 2)),
        (16384, 1, 16384, (16384, 1)),
    ],
)
def test_context(n_ctx: int, n_parallel: int, room: int | None, expected: tuple[int, int]) -> None:
    made = plan(n_ctx, n_parallel, room)
    assert (made.n_ctx, made.n_parallel) == expected
    assert made.n_cells == made.n_ctx * made.n_parallel
    assert room is None or made.memory <= (200 + room) * MIB


@pytest.mark.parametrize(
    ("n_ctx", "n_parallel", "room"),
    [(0, 0, 511), (0, 2, 1023), (2000, 2, 2 * 2048 - 1), (2001, 0, 2047), (0, 0, -200), (16, 1, 255)],
)
def test_context_that_does_not_fit(n_ctx: int, n_parallel: int, room: int) -> None:
    words = r"n_ctx \d+ for n_parallel \d+ needs \d+ MiB of memory, 100 MiB of them for the weights; "
    with pytest.raises(LoadError, match=rf"{words}{200 + room} MiB are available, and even n_ctx .* needs \d+ MiB"):
        plan(n_ctx, n_parallel, room)


@pytest.mark.parametrize(
    ("n_ctx", "n_parallel", "room", "expected"),
    [
        (2048, 4, 4 * 2048, (2048, 4, 4 * 2048)),
        (2048, 4, 4 * 2048 - 1, (2048, 4, 4 * 2048 - 256)),  # the pool shrinks, each may still be as long
        (2048, 4, 2048, (2048, 4, 2048)),
        (0, 4, 2047, (1792, 4, 1792)),
    ],
)
def test_shared_pool(n_ctx: int, n_parallel: int, room: int, expected: tuple[int, int, int]) -> None:
    made = plan(n_ctx, n_parallel, room, unified=True)
    assert (made.n_ctx, made.n_parallel, made.n_cells) == expected


def test_shared_pool_that_does_not_fit() -> None:
    with pytest.raises(LoadError, match="even n_ctx 2048 for n_parallel 4 in a pool of 2048 needs 2248 MiB"):
        plan(2048, 4, 2047, unified=True)


@pytest.mark.parametrize(("n_threads", "n_parallel"), [(1, 4), (2, 4), (3, 6), (8, 16), (64, 16)])
def test_answers_at_once_by_threads(n_threads: int, n_parallel: int) -> None:
    assert plan(0, 0, None, n_threads=n_threads).n_parallel == n_parallel


def test_every_need_is_counted() -> None:
    usual = plan(512, 2, None).memory
    assert plan(512, 2, None, per_slot=10 * MIB).memory == usual + 20 * MIB
    assert plan(512, 2, None, per_view_token=MIB).memory == usual + 512 * MIB
    assert plan(512, 2, None, per_view_token=MIB, unified=True).memory == usual + 1024 * MIB
    assert usual == (100 + 36 + 64 + 1024) * MIB


def test_reason_of_the_context() -> None:
    assert plan(0, 2, None).reason == "n_ctx 4096 computed; n_parallel 2 set; the model was trained on 32768 tokens"
    assert plan(8192, 2, None, n_ctx_train=2048).reason.endswith("trained on 2048 tokens, LESS than n_ctx")
    assert plan(0, 0, 4095).reason.endswith(
        "reduced from n_ctx 4096 for n_parallel 8 to fit the memory, 4295 MiB available"
    )


def test_model_with_a_short_context() -> None:
    assert plan(0, 0, 600, n_ctx_train=100).n_ctx == 100
    assert plan(0, 0, 600, n_ctx_train=100).n_parallel == 2


def test_model_without_kv_cache() -> None:
    assert plan(0, 0, 1, per_token=0).n_ctx == 4096
