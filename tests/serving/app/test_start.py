"""The entry point of `python -m serving` before its command is imported."""

import os
import ssl

import pytest

from serving import __main__ as entry


@pytest.mark.parametrize("given", [None, "/some/certificates.pem"])
def test_certificates_are_left_out_for_the_import_alone(given, monkeypatch):
    """Also if the import fails; contexts that are made later read them."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if given is not None:
        monkeypatch.setenv("SSL_CERT_FILE", given)
    with pytest.raises(ImportError), entry._without_certificates():
        assert not ssl.create_default_context().get_ca_certs()
        raise ImportError
    assert os.environ.get("SSL_CERT_FILE") == given
