"""A PostgreSQL server of the tests' own: a cluster in a temporary folder, on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import create_engine, text


def _binaries() -> Path | None:
    """Where initdb and pg_ctl are: Debian keeps them off the path."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in reversed(places) if (place / "initdb").exists()), None)


BINARIES = _binaries()
WHY = "there is no PostgreSQL server here (initdb): apt-get install postgresql"


class Cluster:
    """Its databases order texts as English dictionaries do, in which case and punctuation come last."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.folder.chmod(0o777)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql+psycopg://trivium@127.0.0.1:{self.port}"
        locale = ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"]
        _run("initdb", "-D", self.folder / "data", "-U", "trivium", "-A", "trust", "-E", "UTF8", *locale)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        _run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "-o", options, "start")

    def stop(self) -> None:
        _run("pg_ctl", "-D", self.folder / "data", "-m", "fast", "stop")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self, name: str) -> str:
        """The URL of a new one."""
        sql(f"{self.url}/postgres", f'CREATE DATABASE "{name}"')
        return f"{self.url}/{name}"


def sql(url: str, *statements: str, **values):
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        results = [connection.execute(text(statement), values) for statement in statements]
        found = results[-1].fetchall() if results[-1].returns_rows else []
    engine.dispose()
    return found


def _run(command: str, *words: object) -> None:
    """As somebody else where we are root, whom PostgreSQL refuses."""
    user = "postgres" if os.geteuid() == 0 else None
    assert BINARIES is not None
    line = [str(BINARIES / command), *map(str, words)]
    subprocess.run(line, check=True, timeout=120, user=user, cwd="/", stdout=subprocess.DEVNULL)
