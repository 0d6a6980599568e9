"""The command line: arguments in, exit code out, never a traceback."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tritonctl import desired, observe, report, status, usage, verify, wait
from tritonctl.apply import Applier, Outcome, Run
from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.desired import Model
from tritonctl.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, BadInput, TritonctlError
from tritonctl.lock import changes
from tritonctl.names import ENGINE_SUFFIX, check_model_name
from tritonctl.progress import Progress
from tritonctl.reconcile import Target, target_of

DEFAULT_SOCKET = "/run/triton/http.sock"
DEFAULT_DESIRED = "/etc/triton/models.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    # Whatever the locale: a reason or an answer in any script must not end in an encoding error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if arguments.json else None, errors="backslashreplace")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except TritonctlError as error:
        return _fail(arguments, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail(arguments, "interrupted; what the server was asked for goes on there", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our output (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return _fail(arguments, f"internal error, please report it: {error!r} at {where}", EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritonctl",
        description="See and set which models this host's Triton server serves.",
        epilog=usage.MAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, epilog: str, timeout: float
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
        command.add_argument(
            "--timeout",
            type=_seconds,
            default=timeout,
            metavar="S",
            help="time limit in seconds (%(default)g)",
        )
        command.add_argument(
            "--socket", default=DEFAULT_SOCKET, metavar="PATH", help="the server's HTTP socket (%(default)s)"
        )
        command.add_argument("--desired", default=DEFAULT_DESIRED, metavar="PATH", help="the desired set (%(default)s)")
        command.set_defaults(run=run)
        return command

    add("status", _status, "show what is wanted and what is served", usage.STATUS, 10)
    load = add("load", _load, "load a model by hand", usage.LOAD, 600)
    load.add_argument("name", metavar="NAME", help="the model's name, as clients use it")
    unload = add("unload", _unload, "unload a model by hand", usage.UNLOAD, 600)
    unload.add_argument("name", metavar="NAME", help="the model's name, as clients use it")
    apply = add("apply", _apply, "make what is served equal to what is wanted", usage.APPLY, 600)
    apply.add_argument("--check", action="store_true", help="only say what would be done")
    check = add("verify", _verify, "ask models for a real answer and look at it", usage.VERIFY, 300)
    check.add_argument("name", metavar="NAME", nargs="?", help="this model alone (all that are to be loaded)")
    add("wait", _wait, "wait until the server answers", usage.WAIT, 60)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time limit (allowed: above 0, at most 86400 seconds)")
    return value


def _status(arguments: argparse.Namespace) -> int:
    models: list[Model] = []
    desired_error: TritonctlError | None = None
    try:
        models = desired.read(arguments.desired)
    except BadInput as error:
        desired_error = error
    found = status.collect(Client(arguments.socket), models, desired_error, Deadline(arguments.timeout))
    if arguments.json:
        _print_json(report.status_json(found))
    else:
        print(report.status_text(found), flush=True)
        for problem in (found.error, found.desired_error):
            if problem is not None:
                _say_error(str(problem))
    return found.exit_code


def _apply(arguments: argparse.Namespace) -> int:
    targets = [target_of(model) for model in desired.read(arguments.desired)]
    applier, progress = _applier(arguments)
    if arguments.check:
        return _finish(arguments, applier.plan(targets))
    with changes(arguments.socket, arguments.timeout, progress.say):
        return _finish(arguments, applier.run(targets))


def _load(arguments: argparse.Namespace) -> int:
    return _by_hand(arguments, loaded=True)


def _unload(arguments: argparse.Namespace) -> int:
    return _by_hand(arguments, loaded=False)


def _by_hand(arguments: argparse.Namespace, loaded: bool) -> int:
    name = check_model_name(arguments.name)
    entry = _entry(name, desired.read(arguments.desired))
    applier, progress = _applier(arguments)
    with changes(arguments.socket, arguments.timeout, progress.say):
        target = target_of(entry, loaded) if entry else _undeclared(name, loaded, arguments)
        run = applier.run([target], only=target.units)
    return _finish(arguments, run, _note(name, entry, loaded, arguments.desired))


def _verify(arguments: argparse.Namespace) -> int:
    models = desired.read(arguments.desired)
    client = Client(arguments.socket)
    if arguments.name is None:
        jobs = [(target_of(model), model.golden) for model in models if model.state == "loaded"]
    else:
        entry = _entry(check_model_name(arguments.name), models)
        target = target_of(entry, True) if entry else _undeclared(arguments.name, True, arguments)
        jobs = [(target, entry.golden if entry else ())]
    observed = observe.units(client, Deadline(arguments.timeout))
    progress = Progress(enabled=not arguments.json)
    limit: float = arguments.timeout
    verdicts = [verify.verify(client, target, golden, observed, limit, progress) for target, golden in jobs]
    if arguments.json:
        _print_json(report.verify_json(verdicts))
    else:
        print(report.verify_text(verdicts))
    return verify.exit_code(verdicts)


def _wait(arguments: argparse.Namespace) -> int:
    progress = Progress(enabled=not arguments.json)
    seconds = wait.until_live(Client(arguments.socket), arguments.timeout, progress)
    if arguments.json:
        _print_json({"ok": True, "seconds": round(seconds, 3), "error": None})
    else:
        print(f"the server answers (after {seconds:.1f} s)")
    return EXIT_OK


def _applier(arguments: argparse.Namespace) -> tuple[Applier, Progress]:
    def tell(outcome: Outcome) -> None:
        if not arguments.json:
            print(report.outcome_text(outcome), flush=True)

    progress = Progress(enabled=not arguments.json)
    return Applier(Client(arguments.socket), arguments.timeout, progress, tell), progress


def _entry(name: str, models: Sequence[Model]) -> Model | None:
    return next((model for model in models if model.name == name), None)


def _undeclared(name: str, loaded: bool, arguments: argparse.Namespace) -> Target:
    """The target for a model that only the repository knows: whichever of its two units are there."""
    known = observe.from_index(Client(arguments.socket).index(Deadline(arguments.timeout)))
    units = tuple(unit for unit in (name + ENGINE_SUFFIX, name) if unit in known)
    if not units:
        raise BadInput(f"there is no model {name!r}: neither the desired set nor the model repository has it")
    return Target(name, units, loaded)


def _note(name: str, entry: Model | None, loaded: bool, path: str) -> str | None:
    """What becomes of a change by hand, None when it agrees with the desired set."""
    if loaded == (entry is not None and entry.state == "loaded"):
        return None
    says = f"has {name} as {entry.state}" if entry else f"does not have {name}"
    undo = "unload" if loaded else "load"
    return f"the desired set is unchanged: {path} {says}, the next `tritonctl apply` will {undo} it"


def _finish(arguments: argparse.Namespace, run: Run, note: str | None = None) -> int:
    check = getattr(arguments, "check", False)
    if arguments.json:
        _print_json(report.run_json(run, check, note))
        return run.exit_code
    print(report.run_text(run, check))
    if note:
        print(note)
    if run.lost:
        _say_error(run.lost)
    return run.exit_code


def _fail(arguments: argparse.Namespace, text: str, code: int) -> int:
    if arguments.json:
        _print_json({"ok": False, "changed": False, "error": text})
    _say_error(text)
    return code


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False), flush=True)


def _say_error(text: str) -> None:
    print(f"tritonctl: {report.one_line(text, limit=2000)}", file=sys.stderr, flush=True)
