"""Files of tokens: those of servers (first byte even) and those with one token (odd)."""

from pswire.security.token_files import check_token, parse_tokens

COVERS = ["pswire.security.token_files"]


def run(data: bytes) -> None:
    if data and data[0] % 2:
        check_token(data[1:].decode(errors="replace"), "a file")
        return
    found = parse_tokens(data[1:], "a file")
    assert parse_tokens(found.text().encode(), "a file") == found
    assert found.find("x" * 43) is None
