"""Action that waits for an asynchronous build and shows how far it is.

Ansible says nothing while an asynchronous task runs, and a build of minutes without a line looks like a hang.
So this action reads the end of the build's log at each interval and prints ninja's ``[n/m]`` as a percentage.
"""

from __future__ import annotations

import re
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROGRESS = re.compile(r"\[(\d+)/(\d+)\]")
LOG_LINES_ON_FAILURE = 25

display = Display()


def progress(log: str) -> str:
    """Return the last ``[n/m]`` of a build log as text, or what to say while there is none."""
    steps = PROGRESS.findall(log)
    if not steps:
        return "preparing"
    done, total = (int(number) for number in steps[-1])
    return f"{done}/{total} ({100 * done // total} %)"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Arguments: ``jid`` of the asynchronous task, ``log`` on the build host, ``label``, ``interval`` (s)."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "jid": {"type": "str", "required": True},
                "log": {"type": "path", "required": True},
                "label": {"type": "str", "required": True},
                "interval": {"type": "int", "default": 10},
            }
        )
        started = time.monotonic()
        while True:
            result = self._job(arguments["jid"], "status", task_vars)
            if result.get("finished"):
                break
            if result.get("failed"):
                raise AnsibleActionFail(f"the state of the build can't be read: {result.get('msg', result)}")
            seconds = int(time.monotonic() - started)
            done = progress(self._tail(arguments["log"], 400))
            display.display(f"    {arguments['label']}: {done} after {seconds} s")
            time.sleep(arguments["interval"])
        self._job(arguments["jid"], "cleanup", task_vars)
        result["changed"] = True
        if result.get("rc", 1) != 0:
            result["failed"] = True
            result["msg"] = (
                f"the build of {arguments['label']} failed: {result.get('msg', '')}. The end of its log:\n"
                f"{self._tail(arguments['log'], LOG_LINES_ON_FAILURE)}"
            )
        return result

    def _job(self, jid: str, mode: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        directory = self.get_shell_option("async_dir", default="~/.ansible_async")
        result: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.async_status",
            module_args={"jid": jid, "mode": mode, "_async_dir": directory},
            task_vars=task_vars,
        )
        return result

    def _tail(self, log: str, lines: int) -> str:
        return str(self._low_level_execute_command(f"tail -n {lines} {shlex.quote(log)}").get("stdout", ""))
