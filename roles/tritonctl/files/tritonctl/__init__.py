"""tritonctl: the one program that talks to Triton's model control API on a host.

Runs on the distribution's Python (3.10 or newer) with the standard library only.
"""
