import pytest
import torch
from hypothesis import HealthCheck, settings

# How long an example takes says nothing about the code: it is scheduling, imports and compilation.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices: a second thread would only wait, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
