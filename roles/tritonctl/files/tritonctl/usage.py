"""The texts of --help: what each command does, by example."""

from __future__ import annotations

EXIT_CODES = """\
exit codes:
  0  all is well
  1  a model failed: it did not load, gave a wrong answer, or is not as desired
  2  wrong usage, or the desired set is missing or invalid
  3  the server can't be reached (not running, no permission, went away)
  4  a time limit ran out
  When several apply: 3 before 4 before 1.  130: interrupted by Ctrl-C.
"""

MAIN = (
    """\
Models are declared in /etc/triton/models.json (written by the deployment, not by
hand). A model NAME, as clients use it, stands for two Triton models, its units:
NAME_stream, the engine, and NAME, the front before it.

a first look:
  tritonctl status                 what is wanted, what is served, where they differ
  tritonctl verify                 a real generation from each model
  tritonctl apply                  make what is served equal to what is wanted
  tritonctl COMMAND --help         the whole story of a command

"""
    + EXIT_CODES
)

STATUS = (
    """\
Shows the server (live, ready, version), the release it runs from (and whether a newer
one waits for a restart), and for each model what is desired and, per unit, the state,
version, revision and the reason of a failure. States: READY, LOADING, UNLOADING,
UNAVAILABLE (unloaded, or failed), NOT_LOADED (never loaded), ABSENT (not in the
repository). Reads only. Exits 1 when a model is not as desired. A model whose process
has died still shows READY, because the server says so: `tritonctl verify` finds it,
`systemctl restart triton` replaces it.

examples:
  tritonctl status
  tritonctl status --json | jq '.models[] | select(.as_desired | not)'

"""
    + EXIT_CODES
)

LOAD = (
    """\
Loads the units of a model, the engine first, and waits until they serve. For use by
hand: the desired set stays as it is, so the next `tritonctl apply` (at the latest
when triton.service starts) restores what is declared. To keep a model loaded, declare
it `state: loaded` and deploy. A model that is in the repository and not in the
desired set can be loaded too. What is loaded as wanted is left alone; to start a
model afresh, unload it first.

examples:
  tritonctl load demo
  tritonctl unload demo && tritonctl load demo      start it afresh

"""
    + EXIT_CODES
)

UNLOAD = (
    """\
Unloads the units of a model, the front first, and waits until they are gone; requests
under way are finished. For use by hand: the desired set stays as it is, so the next
`tritonctl apply` (at the latest when triton.service starts) restores what is
declared. To keep a model out, declare it `state: present` and deploy.

examples:
  tritonctl unload demo
  tritonctl unload demo --timeout 60 --json

"""
    + EXIT_CODES
)

APPLY = (
    """\
Makes what is served equal to the desired set, and says what it changed:
  - what is loaded and not to be loaded is unloaded, first of all
  - what is to be loaded and is not, is loaded, the engine first
  - what serves another version or revision than desired is unloaded, front first,
    then loaded anew, so that memory never has to hold both; after a load the served
    revision is checked
A model that fails does not stop the others. Running it again changes nothing when all
is as desired. --timeout holds for each load and unload, and for waiting while another
tritonctl is at work.

examples:
  tritonctl apply
  tritonctl apply --check          only say what would be done
  tritonctl apply --json           {"ok": ..., "changed": ..., "actions": [...]}

"""
    + EXIT_CODES
)

VERIFY = (
    """\
Asks each model that is to be loaded (or NAME alone) for a real generation and looks
at the text: the golden prompts of the desired set (equals or contains), or, for a
model that declares none, that `Hello` gets an answer that is not empty. Fails too
when a unit does not serve the desired version and revision. --timeout holds for each
generation.

examples:
  tritonctl verify
  tritonctl verify demo --json

"""
    + EXIT_CODES
)

WAIT = (
    """\
Returns as soon as the server answers that it is live, models or none. A socket that
is not there yet is waited for; one that this user may not use is not.

examples:
  systemctl start --no-block triton && tritonctl wait --timeout 30

"""
    + EXIT_CODES
)
