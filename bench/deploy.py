"""Times a deploy of the lab host in its three forms, and counts what it downloads.

warm   a bare host, the wheel in the store: until `site.yml` ends, that is until the first verified answer
cold   the same with an empty store, so that the wheel is built on the host
rerun  `site.yml` on the converged host

Run it as `make bench-deploy`. It makes a lab of its own and removes it. Times are of the machine it runs on and no
test depends on them; the result goes to bench/results/deploy.json, with the longest tasks of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = REPOSITORY / "bench" / "results" / "deploy.json"
LAB = "bench-deploy"
LONGEST = 8


def playbook(path: str, *arguments: str, profile: bool = False) -> tuple[float, str]:
    """Run a playbook against the lab; return its seconds and its output. Raises CalledProcessError when it fails."""
    environment = {**os.environ, "LAB": LAB, "ANSIBLE_NOCOLOR": "1"}
    if profile:
        environment["ANSIBLE_CALLBACKS_ENABLED"] = "ansible.posix.profile_tasks"
    command = [str(REPOSITORY / ".venv/bin/ansible-playbook"), "-i", "inventories/lab", path, *arguments]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.5)
            print(f"\r{path}: {time.monotonic() - started:.0f} s", end="", file=sys.stderr, flush=True)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read()
    print(file=sys.stderr)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output=text)
    return seconds, text


def longest_tasks(output: str) -> list[dict[str, Any]]:
    """The longest tasks of a run, from the table that profile_tasks prints at its end."""
    rows = re.findall(r"^(.+?) -+ *([0-9.]+)s$", output, flags=re.MULTILINE)
    return [{"task": task, "seconds": float(seconds)} for task, seconds in rows[:LONGEST]]


def received_bytes() -> int:
    """What the lab host has received over its network interface since it was started."""
    counter = "/sys/class/net/eth0/statistics/rx_bytes"
    return int(subprocess.check_output(["podman", "exec", f"{LAB}-node1", "cat", counter]))


def deploy(*arguments: str) -> dict[str, Any]:
    """`site.yml` on a new bare host."""
    playbook("lab/destroy.yml")
    playbook("lab/create.yml")
    playbook("lab/prepare.yml")
    before = received_bytes()
    seconds, output = playbook("site.yml", *arguments, profile=True)
    return {
        "seconds": round(seconds, 1),
        "received_mb": round((received_bytes() - before) / 1e6, 1),
        "longest": longest_tasks(output),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", action="store_true", help="also with an empty store (builds the wheel)")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "cpu": cpu_name(), "kernel": platform.release()},
    }
    try:
        if options.cold:
            with tempfile.TemporaryDirectory() as store:
                result["cold"] = deploy("-e", f"llama_cpp_python_store={store}")
        result["warm"] = deploy()
        reruns = [playbook("site.yml", profile=True) for _ in range(3)]
        seconds, output = sorted(reruns)[1]
        result["rerun"] = {"seconds": round(seconds, 1), "longest": longest_tasks(output)}
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.output[-4000:]}")
    finally:
        playbook("lab/destroy.yml")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def cpu_name() -> str:
    """The processor as the kernel names it."""
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return match[1] if match else platform.machine()


if __name__ == "__main__":
    main()
