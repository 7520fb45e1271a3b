import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices: a second thread would only wait, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
