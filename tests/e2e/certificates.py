"""Certificates of the tests' own: a CA, and what it signs."""

import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Those of a server."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


class Authority:
    """A CA in a folder."""

    def __init__(self, folder: Path, name: str = "the tests") -> None:
        if shutil.which("openssl") is None:
            if os.environ.get("CI") == "true":
                pytest.fail("openssl is not installed")
            pytest.skip("openssl is not installed")
        self._folder = folder / name.replace(" ", "-")
        self._folder.mkdir(parents=True)
        self.file = self._folder / "ca.pem"
        self._key = self._folder / "ca.key"
        subject = ["-days", "2", "-subj", f"/CN=CA of {name}"]
        files = ["-keyout", str(self._key), "-out", str(self.file)]
        _openssl("req", "-x509", *_KEY, *subject, *files)

    def sign(
        self,
        name: str,
        names: str = "IP:127.0.0.1,DNS:localhost",
        *,
        subject: str = "",
        days: int = 2,
        usage: str = "serverAuth",
    ) -> Pair:
        """A new certificate; with days below 0, one that has expired."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.extensions"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage={usage}\n")
        _openssl(
            *("req", "-new", *_KEY, "-subj", subject or f"/CN={name}"),
            *("-keyout", str(pair.key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-days", str(days)),
            *("-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-extfile", str(extensions), "-out", str(pair.certificate)),
        )
        return pair

    def client(self, name: str, subject: str = "", *, days: int = 2) -> Pair:
        """A certificate for a peer."""
        return self.sign(
            name, f"DNS:{name}.example", subject=subject, days=days, usage="clientAuth"
        )

    def brief(self, pair: Pair, seconds: int) -> Pair:
        """The same for so many seconds from now on."""
        folder, request = self._folder / "brief", pair.certificate.with_suffix(".csr")
        folder.mkdir()
        (folder / "index").touch()
        settings = folder / "settings"
        lines = [f"database = {folder}/index", f"new_certs_dir = {folder}", "default_md = sha256"]
        lines += ["rand_serial = yes", "policy = any", "[any]", "commonName = optional"]
        settings.write_text("\n".join(["[ca]", "default_ca = own", "[own]", *lines, ""]))
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        found = Pair(folder / "certificate.pem", pair.key)
        _openssl(
            *("ca", "-batch", "-notext", "-config", str(settings), "-in", str(request)),
            *("-cert", str(self.file), "-keyfile", str(self._key), "-out", str(found.certificate)),
            *("-startdate", "20200101000000Z", "-enddate", f"{end:%Y%m%d%H%M%SZ}"),
            *("-extfile", str(pair.certificate.with_suffix(".extensions"))),
        )
        return found

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """That of a peer who trusts this CA."""
        context = ssl.create_default_context(cafile=self.file)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=240)
