#!/usr/bin/python3
"""Write the certificates that this machine trusts beyond Mozilla's list into a directory, one file each.

usage: machine-cas DIRECTORY

A machine behind a proxy with a CA of its own has that CA in the bundle that its tools use. A lab host talks
through the same proxy, so it needs the same CA. The files are named by digest: same certificates, same names.
"""

import hashlib
import os
import re
import sys
from pathlib import Path

PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", os.environ.get("SSL_CERT_FILE"), os.environ.get("PIP_CERT"))
MOZILLA = Path("/usr/share/ca-certificates")


def certificates(path: Path) -> dict[str, str]:
    """Return {digest: PEM} of every certificate in a file."""
    found = {}
    for match in PEM.finditer(path.read_text(encoding="utf-8", errors="replace")):
        body = "".join(match.group(1).split())
        found[hashlib.sha256(body.encode()).hexdigest()[:16]] = match.group(0) + "\n"
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)

    trusted: dict[str, str] = {}
    for bundle in BUNDLES:
        if bundle and Path(bundle).is_file():
            trusted.update(certificates(Path(bundle)))
    for known in MOZILLA.rglob("*.crt"):
        for digest in certificates(known):
            trusted.pop(digest, None)

    for stale in set(target.glob("*.crt")) - {target / f"machine-{digest}.crt" for digest in trusted}:
        stale.unlink()
    for digest, pem in sorted(trusted.items()):
        (target / f"machine-{digest}.crt").write_text(pem, encoding="ascii")
    print("\n".join(sorted(trusted)))


if __name__ == "__main__":
    main()
