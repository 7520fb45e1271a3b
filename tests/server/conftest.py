import pytest
from sample_server import made, running

LIMITS = ("documents=3", "queries=3", "characters=30", "k=30", "rate=0", "body=200000", "body_seconds=2", "seconds=120")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Two workers and a writer, with limits that tests can reach."""
    folder = tmp_path_factory.mktemp("serving")
    flags = [f"--limit.{limit}" for limit in LIMITS]
    with running(made(folder / "index"), folder / "log", "--workers=2", "--writable", *flags) as found:
        found.index = folder / "index"
        yield found
