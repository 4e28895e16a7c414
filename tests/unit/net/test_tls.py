"""TLS contexts, without a network."""

import ssl

import pytest

from manyhands.net.tls import client_context


def test_a_connection_to_another_server_verifies_it_and_its_name():
    context = client_context(None)

    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_file_without_certificates_is_refused_with_a_sentence(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("nothing")

    with pytest.raises(OSError, match="cannot be used"):
        client_context(file)
