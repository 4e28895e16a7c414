"""What a peer's certificate says."""

from manyhands.access.credentials import Certificate
from manyhands.net.peer_certificate import certificate_of


def test_the_subject_is_written_as_in_rfc_4514_with_the_narrowest_part_first():
    verified = {
        "subject": (
            (("countryName", "DE"),),
            (("organizationName", "Smith, Jones"),),
            (("commonName", "mailer"), ("emailAddress", "a@b.example")),
        ),
        "subjectAltName": (("DNS", "mailer.example"), ("URI", "spiffe://x/mailer")),
    }

    assert certificate_of(verified) == Certificate(
        r"CN=mailer+emailAddress=a@b.example,O=Smith\, Jones,C=DE",
        ("mailer.example", "spiffe://x/mailer"),
    )


def test_a_value_cannot_be_mistaken_for_two():
    """One subject cannot be written so that it looks like another."""
    crafted = {"subject": ((("commonName", "mailer,O=Example"),),)}
    honest = {"subject": ((("organizationName", "Example"),), (("commonName", "mailer"),))}

    assert certificate_of(crafted) != certificate_of(honest)
    assert certificate_of({"subject": ((("commonName", " # "),),)}) == Certificate("CN=\\ #\\ ")


def test_a_peer_without_a_certificate_has_none():
    assert certificate_of(None) is None
    assert certificate_of({}) is None
