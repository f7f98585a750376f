"""Every mistake in tests/mutations.py is caught, and the unbroken kernel passes the same trials."""

import mutations
import pytest


def test_the_shipped_kernels_pass_the_trials():
    assert mutations.catch(None) is None


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_mutation_is_caught(mutation, tmp_path, record_property):
    caught = mutations.catch(mutations.build(mutation, tmp_path))
    record_property("mutation", f"{mutation.name}: {caught or 'NOT CAUGHT'}")
    assert caught
